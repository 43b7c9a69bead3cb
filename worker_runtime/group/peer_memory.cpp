#include "worker_runtime/group/peer_memory.hpp"

#include <fmt/format.h>

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <torchup/collectives.hpp>
#include <torchup/error.hpp>

namespace torchup {

std::unique_ptr<PeerMemory> PeerMemory::of(const ProcessGroup& group) {
  // A word that no other process has at this address: it tells a rank from a stranger with the same pid elsewhere.
  std::random_device chance;
  const std::int64_t word = static_cast<std::int64_t>(chance()) << 32 | chance();
  const torch::Tensor mine =
      torch::tensor({std::int64_t{getpid()}, static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(&word)), word},
                    torch::TensorOptions{}.dtype(torch::kLong));
  const std::vector<torch::Tensor> all = all_gather(mine, group);
  std::vector<pid_t> processes;
  for (const torch::Tensor& facts : all) processes.push_back(static_cast<pid_t>(facts[0].item<std::int64_t>()));
  std::unique_ptr<PeerMemory> memory{new PeerMemory{std::move(processes)}};

  bool readable = true;
  for (int rank = 0; rank < group.size(); ++rank) {
    const torch::Tensor& facts = all[static_cast<std::size_t>(rank)];
    std::int64_t seen = 0;
    readable = readable &&
               memory->try_read(rank, static_cast<std::uintptr_t>(facts[1].item<std::int64_t>()), &seen, sizeof seen) &&
               seen == facts[2].item<std::int64_t>();
  }
  // Nobody leaves, and takes its word along, before all have looked.
  torch::Tensor everywhere = torch::tensor({static_cast<std::int64_t>(readable)});
  all_reduce(everywhere, group, ReduceOp::min);
  return everywhere.item<std::int64_t>() ? std::move(memory) : nullptr;
}

bool PeerMemory::try_read(int rank, std::uintptr_t address, void* to, std::size_t bytes) const {
  for (std::size_t done = 0; done < bytes;) {
    const iovec local{static_cast<char*>(to) + done, bytes - done};
    const iovec remote{reinterpret_cast<void*>(address + done), bytes - done};
    const ssize_t part = process_vm_readv(processes_[static_cast<std::size_t>(rank)], &local, 1, &remote, 1, 0);
    if (part <= 0) return false;
    done += static_cast<std::size_t>(part);
  }
  return true;
}

void PeerMemory::read(int rank, std::uintptr_t address, void* to, std::size_t bytes) const {
  if (!try_read(rank, address, to, bytes))
    throw Error{fmt::format("cannot read the memory of rank {}: {}", rank, std::strerror(errno))};
}

}  // namespace torchup
