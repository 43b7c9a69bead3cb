#include "worker_runtime/place/device_choice.hpp"

#include <fmt/format.h>

#include "worker_runtime/place/throw_error.hpp"

namespace torchup {
namespace {

std::string lacks_gpu(const WorkerPlace& place, const VisibleGpus& gpus) {
  return fmt::format("local rank {} of {} has no GPU of its own ({} visible); start one worker per GPU",
                     place.local_rank, place.local_size, gpus.count);
}

}  // namespace

std::optional<int> own_gpu(const WorkerPlace& place, const VisibleGpus& gpus) {
  if (gpus.count >= place.local_size && gpus.count > place.local_rank) return place.local_rank;
  if (gpus.count == 1 && gpus.chosen && gpus.chosen->find(',') == std::string::npos) return 0;
  return std::nullopt;
}

DeviceChoice choose_device(const DeviceWish& wish, const WorkerPlace& place, const VisibleGpus& gpus) {
  using Kind = DeviceWish::Kind;
  if (wish.backend == "mpi")
    throw_error(
        "backend mpi: PyTorch's wheels are built without MPI. Use gloo or nccl; under mpirun the ranks are read from "
        "its environment all the same");
  const bool automatic = wish.backend == "auto";
  if (!automatic && wish.backend != "gloo" && wish.backend != "nccl")
    throw_error(fmt::format("backend \"{}\" is none of auto, gloo, nccl", wish.backend));
  if (wish.backend == "nccl" && wish.kind == Kind::cpu)
    throw_error("backend nccl works on GPUs only, and device cpu was asked for; use gloo, or leave the device out");

  DeviceChoice choice;
  if (wish.kind == Kind::gpu && wish.index) {
    if (*wish.index >= gpus.count)
      throw_error(fmt::format("device cuda:{} is not there: this process sees {} GPUs", *wish.index, gpus.count));
    choice.gpu = wish.index;
  } else if (wish.kind != Kind::cpu) {
    choice.gpu = own_gpu(place, gpus);
  }
  if (wish.kind == Kind::gpu && !choice.gpu) throw_error("device cuda: " + lacks_gpu(place, gpus));
  if (wish.backend == "nccl" && !choice.gpu) throw_error("backend nccl: " + lacks_gpu(place, gpus) + ", or use gloo");
  choice.offers_nccl = choice.gpu && wish.backend != "gloo";
  choice.offers_gloo = wish.backend != "nccl";
  return choice;
}

}  // namespace torchup
