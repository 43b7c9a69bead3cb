#include "launcher/os/machine/gpus.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <boost/system/errc.hpp>
#include <optional>

#include "launcher/core/machine/gpu_text.hpp"
#include "launcher/os/io/helper.hpp"
#include "launcher/os/machine/cpus.hpp"
#include "launcher/os/machine/nvml.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "rendezvous/net/io/write_all.hpp"

namespace torchup {
namespace {

bool driver_loaded() {
  // A native driver, that of a container that was given GPUs, the one of WSL.
  return access("/proc/driver/nvidia/version", F_OK) == 0 || access("/dev/nvidiactl", F_OK) == 0 ||
         access("/dev/dxg", F_OK) == 0;
}

}  // namespace

int answer_about_gpus(const std::string& library) {
  // What the driver itself says on stdout is no answer.
  const UniqueFd out{::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)};
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  const std::string text = to_gpu_text(ask_nvml(library));
  std::string_view rest = text;
  return write_all(out.get(), rest) == 0 ? 0 : 1;
}

Gpus read_gpus(const GpuQuery& query) {
  if (query.driver_check && !driver_loaded()) return {{}, std::string{no_driver}};

  const Helper helper{.executable = query.program,
                      .arguments = {std::string{nvml_word}, query.library},
                      .limit = query.limit,
                      .answer_bytes_max = gpu_text_bytes_max};
  const auto answer = ask_helper(helper);
  if (!answer && answer.error().code == boost::system::errc::timed_out) {
    const auto limit_ms = std::chrono::duration_cast<std::chrono::milliseconds>(query.limit).count();
    return {{}, fmt::format("the NVIDIA driver gave no answer within {} ms", limit_ms)};
  }
  if (!answer) return {{}, "cannot ask the driver: " + answer.error().message()};
  std::optional<Gpus> gpus = from_gpu_text(*answer);
  if (!gpus) return {{}, "NVML ended without an answer"};
  for (Gpu& gpu : gpus->list) gpu.numa_node = pci_numa_node(gpu.pci);
  return *gpus;
}

}  // namespace torchup
