// How fast an all-reduce is, by size: algorithm and bus bandwidth as nccl-tests defines them.
//
//   torchup --nproc-per-node=2 all_reduce
//   torchup --nproc-per-node=auto all_reduce --backend nccl --max-bytes 1073741824
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <torchup/torchup.hpp>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string backend = "auto";
  std::int64_t min_bytes = 4 << 10;
  std::int64_t max_bytes = 64 << 20;
  int rounds = 10;  // per size; the median counts
};

/// Seconds of one all-reduce of `tensor`, the slowest rank's.
double time_once(const torch::Tensor& tensor, const torchup::ProcessGroup& group) {
  torchup::barrier(group);
  const auto begin = Clock::now();
  torchup::all_reduce(tensor, group);
  if (tensor.is_cuda()) tensor.flatten()[0].item();  // the host waits for the device
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const torch::Tensor slowest = torch::full({1}, seconds, torch::dtype(torch::kFloat64).device(group.device()));
  torchup::all_reduce(slowest, group, torchup::ReduceOp::max);
  return slowest.item<double>();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

int measure(torchup::Worker& worker, std::span<char*> arguments) {
  Options options;
  CLI::App app{"Bus bandwidth of an all-reduce by size.", "all_reduce"};
  app.option_defaults()->always_capture_default();
  app.add_option("--backend", options.backend)->check(CLI::IsMember({"auto", "gloo", "nccl"}));
  app.add_option("--min-bytes", options.min_bytes, "smallest message")
      ->check(CLI::Range(std::int64_t{4}, std::int64_t{1} << 40));
  app.add_option("--max-bytes", options.max_bytes, "largest message")
      ->check(CLI::Range(std::int64_t{4}, std::int64_t{1} << 40));
  app.add_option("--rounds", options.rounds, "per size; the median counts")->check(CLI::PositiveNumber);
  try {
    app.parse(static_cast<int>(arguments.size()), arguments.data());
  } catch (const CLI::ParseError& stop) {
    const bool silent = worker.rank() != 0;
    if (!silent) return app.exit(stop) == 0 ? 0 : 2;
    return stop.get_exit_code() == 0 ? 0 : 2;
  }

  auto group = torchup::init_process_group({.backend = options.backend});
  const bool talks = group.rank() == 0;
  if (talks)
    std::printf("all_reduce, %s, %d ranks, float\n%12s %12s %14s %14s\n", group.backend().c_str(), group.size(),
                "bytes", "median us", "algorithm GB/s", "bus GB/s");
  for (std::int64_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= 4) {
    const torch::Tensor tensor = torch::zeros({bytes / 4}, torch::device(group.device()));
    time_once(tensor, group);  // connections and buffers
    std::vector<double> seconds;
    for (int round = 0; round < options.rounds; ++round) seconds.push_back(time_once(tensor, group));
    const double algorithm = static_cast<double>(bytes) / median(seconds) / 1e9;
    const double bus = algorithm * 2 * (group.size() - 1) / group.size();  // what each link carries in a ring
    if (talks)
      std::printf("%12lld %12.1f %14.3f %14.3f\n", static_cast<long long>(bytes), median(seconds) * 1e6, algorithm,
                  bus);
    std::fflush(stdout);
  }
  group.shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return torchup::worker_main(argc, argv, measure); }
