#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "launcher/core/scheduler/rows.hpp"
#include "rendezvous/core/link/messages.hpp"

namespace torchup::scheduler {
namespace {

/// The names under which one MPI tells a process its place.
struct PlaceNames {
  std::string_view scheduler, size, rank, local_size, local_rank;
};
constexpr PlaceNames openmpi{"openmpi", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK"};
constexpr PlaceNames mpich{"mpich", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"};

std::string_view first_label(std::string_view host) { return host.substr(0, host.find('.')); }

/// Nodes are counted as ranks over local ranks: that holds where each node has as many, one node's behind the other's.
Result<Allocation> read_place(const ToldWords& words, const PlaceNames& names) {
  const auto size = words.needed(names.size, 1, world_size_max);
  if (!size) return size.error();
  const auto rank = words.needed(names.rank, 0, *size - 1);
  const auto local_size = words.needed(names.local_size, 1, std::min(*size, local_workers_max));
  if (!rank || !local_size) return rank ? local_size.error() : rank.error();
  const auto local_rank = words.needed(names.local_rank, 0, *local_size - 1);
  if (!local_rank) return local_rank.error();
  if (*size % *local_size != 0) {
    return wrong(names.size, *words.text(names.size),
                 fmt::format("it is no multiple of {}={}: nodes with as many processes each are needed",
                             names.local_size, *local_size));
  }
  if (*rank % *local_size != *local_rank) {
    return wrong(names.rank, *words.text(names.rank),
                 fmt::format("with {}={} and {}={} ranks do not follow nodes: one process per node is simplest",
                             names.local_rank, *local_rank, names.local_size, *local_size));
  }
  Allocation found{.scheduler = std::string{names.scheduler}, .each = true, .gpus_visible = true};
  found.nodes = Told<int>{*size / *local_size, fmt::format("{}, {}", names.size, names.local_size)};
  found.node = Told<int>{*rank / *local_size, fmt::format("{}, {}", names.rank, names.local_size)};
  found.tasks = {*local_size, std::string{names.local_size}};
  found.task = *local_rank;
  return found;
}

/// Hosts, run id and end are the batch job's.
Result<> take_from_batch(const ToldWords& words, Allocation& found) {
  auto batch = batch_allocation(words);
  if (!batch) return batch.error();
  if (*batch) {
    found.run_id = (*batch)->run_id;
    found.end = (*batch)->end;
    found.first_host = (*batch)->first_host;
    found.hosts = std::move((*batch)->hosts);
  }
  if (auto address = words.text("MASTER_ADDR"))
    found.first_host = Told<std::string>{*std::move(address), "MASTER_ADDR"};
  auto port = words.port("MASTER_PORT");
  if (!port) return port.error();
  found.port = *std::move(port);
  if (!found.hosts) return {};
  // MPI's order of nodes need not be the list's.
  const auto own = std::ranges::find_if(
      found.hosts->value, [&](const std::string& host) { return first_label(host) == first_label(words.host()); });
  if (own != found.hosts->value.end()) found.own_name = *own;
  return {};
}

Result<std::optional<Allocation>> read(const ToldWords& words, const PlaceNames& names) {
  auto found = read_place(words, names);
  if (!found) return found.error();
  if (auto taken = take_from_batch(words, *found); !taken) return taken.error();
  return std::optional{*std::move(found)};
}

}  // namespace

Result<std::optional<Allocation>> openmpi_row(const ToldWords& words) {
  if (!words.has(openmpi.size)) return std::optional<Allocation>{};
  auto found = read(words, openmpi);
  if (!found) return found;
  if (auto space = words.text("PMIX_NAMESPACE"); space && !(*found)->run_id) {
    (*found)->run_id = Told<std::string>{*std::move(space), "PMIX_NAMESPACE"};
  }
  return found;
}

Result<std::optional<Allocation>> mpich_row(const ToldWords& words) {
  if (!words.has(mpich.local_size) || !words.has(mpich.rank)) return std::optional<Allocation>{};
  return read(words, mpich);
}

Result<std::optional<Allocation>> batch_allocation(const ToldWords& words) {
  constexpr std::array<Row, 5> batch_rows{slurm_step_row, slurm_job_row, lsf_row, pbs_row, sge_row};
  for (const Row row : batch_rows) {
    auto found = row(words);
    if (!found || *found) return found;
  }
  return std::optional<Allocation>{};
}

}  // namespace torchup::scheduler
