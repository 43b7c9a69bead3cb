// A small training that can recover, and that is disturbed where it is told to.
//
// usage: elastic_worker --out FOLDER [--fault KIND:RANK:PLACE:STEP:ROUND ...] [--optimizer adam|sgd|fused] [--epochs N]
// [--FLAG ...]
//
// KIND is kill, stop, raise, member, block, ask (to stop the job) or differ (have another weight); PLACE one of those
// where Faults::at is called below; STEP steps done; ROUND restarts so far; "-" is any. Each happens once in a job.
// Into the folder go: birth.PID for each process; samples.PID, a line "round step epoch indices" for each batch;
// final.RANK.json and final.RANK.safetensors.
#include <ATen/CPUGeneratorImpl.h>
#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <torchup/torchup.hpp>

#include "tests/worker_runtime/test_program.hpp"

namespace elastic_worker {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::size_t samples = 48;
constexpr std::int64_t batch = 4;
const pid_t loaded_by = ::getpid();  // another process than the worker that was forked from it

/// What the command line says.
struct Options {
  fs::path out;
  std::vector<std::string> faults;
  std::string optimizer = "adam";
  std::set<std::string> flags;
  std::int64_t epochs = 2;

  explicit Options(std::span<char*> arguments) {
    for (std::size_t i = 1; i < arguments.size(); ++i) {
      const std::string word = arguments[i];
      if (word == "--out") {
        out = arguments[++i];
      } else if (word == "--fault") {
        faults.emplace_back(arguments[++i]);
      } else if (word == "--epochs") {
        epochs = std::atoll(arguments[++i]);
      } else if (word == "--optimizer") {
        optimizer = arguments[++i];
      } else {
        flags.insert(word.substr(2));
      }
    }
  }
  bool has(const char* flag) const { return flags.contains(flag); }
};

class Faults {
 public:
  Faults(const torchup::Worker& worker, const Options& options) : worker_{worker}, out_{options.out} {
    for (const std::string& fault : options.faults) {
      auto& words = faults_.emplace_back();
      std::istringstream text{fault};
      for (std::string word; std::getline(text, word, ':');) words.push_back(word);
    }
  }

  std::int64_t step = 0;
  c10::intrusive_ptr<c10d::Store> store;
  torch::Tensor weight;  ///< for the fault that changes it

  void at(const std::string& place) {
    const std::vector<std::string> here{std::to_string(worker_.rank()), place, std::to_string(step),
                                        std::to_string(worker_.restart_count())};
    for (std::size_t number = 0; number < faults_.size(); ++number) {
      const auto& fault = faults_[number];
      bool meant = true;
      for (std::size_t i = 0; i < here.size(); ++i) meant = meant && (fault[i + 1] == "-" || fault[i + 1] == here[i]);
      if (!meant || !first("fault." + std::to_string(number))) continue;
      wait_for_others(fault);
      happen(fault[0]);
    }
  }

 private:
  /// Whether no process of the job was here before.
  bool first(const std::string& name) const {
    const int file = ::open((out_ / name).c_str(), O_CREAT | O_EXCL | O_CLOEXEC | O_WRONLY, 0644);
    if (file >= 0) ::close(file);
    return file >= 0;
  }
  /// Faults of several ranks at one place are one moment: who is there first does not end the others' round.
  void wait_for_others(const std::vector<std::string>& fault) const {
    for (std::size_t number = 0; number < faults_.size(); ++number) {
      auto alike = faults_[number];
      alike[0] = fault[0];
      alike[1] = fault[1];
      const auto end = std::chrono::steady_clock::now() + 30s;
      while (alike == fault && !fs::exists(out_ / ("fault." + std::to_string(number))) &&
             std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(2ms);
    }
  }
  void happen(const std::string& kind) const {
    if (kind == "kill") ::kill(::getpid(), SIGKILL);
    if (kind == "stop") ::kill(::getpid(), SIGSTOP);
    if (kind == "ask") ::kill(::getpid(), SIGUSR1);
    if (kind == "differ") weight.detach().add_(1);
    if (kind == "raise") throw std::invalid_argument{"a fault of the program's own"};
    if (kind == "member") std::ofstream{out_ / "member"} << ::getpid();
    if (kind == "member" || kind == "block") store->wait({"nobody sets it"}, 60s);
  }

  const torchup::Worker& worker_;
  const fs::path out_;
  std::vector<std::vector<std::string>> faults_;
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(Faults& faults_)
      : first{register_module("first", torch::nn::Linear{6, 8})}, norm{register_module("norm",
                                                                                       torch::nn::BatchNorm1d{8})},
        drop{register_module("drop", torch::nn::Dropout{0.2})}, last{register_module("last", torch::nn::Linear{8, 1})},
        faults{faults_} {}
  torch::Tensor forward(const torch::Tensor& input) {
    auto hidden = first(input);
    faults.at("forward");
    hidden.register_hook([this](const torch::Tensor&) { faults.at("backward"); });
    auto output = last(drop(norm(hidden).relu()));
    output.register_hook([this](const torch::Tensor&) { faults.at("backward_begins"); });
    return output;
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout drop;
  torch::nn::Linear last;
  Faults& faults;
};
TORCH_MODULE(Net);

/// Samples that know their number: it is the first input, and the net gets the others.
struct Numbered : torch::data::datasets::Dataset<Numbered> {
  torch::data::Example<> get(std::size_t index) override {
    auto numbers = at::make_generator<at::CPUGeneratorImpl>(index);
    auto input = torch::cat({torch::full({1}, static_cast<double>(index)), torch::randn({6}, numbers)});
    return {std::move(input), torch::randn({1}, numbers)};
  }
  std::optional<std::size_t> size() const override { return samples; }
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& kind,
                                                        std::vector<torch::Tensor> parameters) {
  if (kind == "sgd")
    return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions{0.05}.momentum(0.9));
  if (kind == "fused")
    return std::make_unique<torchup::FusedAdamW>(std::move(parameters), torchup::FusedAdamWOptions{0.05});
  return std::make_unique<torch::optim::Adam>(std::move(parameters), torch::optim::AdamOptions{0.05});
}

/// Fields of an optimizer's state, for comparison.
torchup::NamedTensors fields_of(const torch::optim::Optimizer& optimizer) {
  torchup::NamedTensors fields;
  int number = 0;
  for (const auto& parameter : optimizer.param_groups()[0].params()) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    const std::string prefix = "optimizer." + std::to_string(number++) + ".";
    if (found == optimizer.state().end()) continue;
    if (const auto* adam = dynamic_cast<const torch::optim::AdamParamState*>(found->second.get())) {
      fields.emplace_back(prefix + "step", torch::tensor(adam->step()));
      fields.emplace_back(prefix + "exp_avg", adam->exp_avg());
      fields.emplace_back(prefix + "exp_avg_sq", adam->exp_avg_sq());
    } else if (const auto* fused = dynamic_cast<const torchup::FusedAdamState*>(found->second.get())) {
      fields.emplace_back(prefix + "exp_avg", fused->exp_avg);
      fields.emplace_back(prefix + "exp_avg_sq", fused->exp_avg_sq);
    } else if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(found->second.get())) {
      fields.emplace_back(prefix + "momentum_buffer", sgd->momentum_buffer());
    }
  }
  return fields;
}

/// How many groups of gloo live in this process: each has a thread.
int groups_of_gloo() {
  int count = 0;
  for (const auto& thread : fs::directory_iterator{"/proc/self/task"}) {
    std::string name;
    std::getline(std::ifstream{thread.path() / "comm"}, name);
    count += name == "gloo_tcp_loop";
  }
  return count;
}

int train(torchup::Worker& worker, std::span<char*> arguments) {
  const Options options{arguments};
  Faults faults{worker, options};
  std::ofstream{options.out / ("birth." + std::to_string(::getpid()))};
  torch::set_num_threads(1);
  torch::manual_seed(options.has("unseeded") ? static_cast<std::uint64_t>(::getpid()) : 5);
  faults.at("connect");
  auto group = torchup::init_process_group({.backend = "gloo"});
  if (options.has("collective-before")) torchup::barrier(group);
  Net net{faults};
  faults.weight = net->last->weight;
  torchup::DistributedDataParallelOptions ddp_options{.bucket_cap_mb_list = {0.0001, 0.0003}};
  ddp_options.find_unused_parameters = options.has("find-unused");
  ddp_options.static_graph = options.has("static-graph");
  ddp_options.gradient_as_bucket_view = options.has("views");
  torchup::DistributedDataParallel ddp{net, group, ddp_options};
  const auto optimizer = make_optimizer(options.optimizer, ddp.parameters());
  torchup::LrScheduler scheduler{*optimizer, torchup::StepLR{.step_size = 3, .gamma = 0.5}};
  torchup::DistributedSampler sampler{samples, group, {.shuffle = true, .seed = 3}};
  const auto dataset = Numbered{}.map(torch::data::transforms::Stack<>{});
  std::optional<torchup::Checkpoint> checkpoint;
  if (options.has("checkpoint"))
    checkpoint.emplace(options.out / "checkpoint", group, torchup::CheckpointOptions{.asynchronous = false});
  std::ofstream log{options.out / ("samples." + std::to_string(::getpid()))};

  std::vector<std::int64_t> loads;
  const auto load = [&] {
    loads.push_back(faults.step);
    faults.at("load");
    const auto found = checkpoint ? checkpoint->resume(net, *optimizer, sampler, ddp, scheduler) : torchup::Position{};
    faults.at("loaded");
    return found;
  };
  const bool replicated = !options.has("unreplicated");
  torchup::Elastic elastic{worker, group, {.seed = 42, .load = load, .replicated = replicated}};
  torchup::Position end;
  std::int64_t round = worker.restart_count();  // changes of the members count as well: of who has been in most
  int groups = 0;
  const int code = elastic.run(
      [&](torchup::Position at) {
        faults.step = at.step;
        faults.store = group.store();
        faults.at("train");
        const auto counted = torch::tensor({++round});
        torchup::all_reduce(counted, group, torchup::ReduceOp::max);
        round = counted.item<std::int64_t>();
        std::vector<int> everybody(static_cast<std::size_t>(group.size()));
        std::iota(everybody.begin(), everybody.end(), 0);
        std::optional<torchup::ProcessGroup> child;
        if (options.has("child")) child = group.new_group(everybody);
        const std::size_t workers = options.has("loader-threads") ? 2 : 0;
        auto loader = torch::data::make_data_loader(
            dataset, sampler, torch::data::DataLoaderOptions{static_cast<std::size_t>(batch)}.workers(workers));
        for (; at.epoch < options.epochs; ++at.epoch) {
          sampler.set_epoch(at.epoch);
          for (auto& each : torchup::to_device(*loader, torch::kCPU, sampler)) {
            log << round << " " << at.step << " " << at.epoch;
            for (std::int64_t i = 0; i < each.data.size(0); ++i) log << " " << each.data[i][0].item<std::int64_t>();
            log << std::endl;
            faults.at("before_forward");
            auto loss = (ddp(each.data.slice(1, 1)) - each.target).pow(2).mean();
            faults.at("after_forward");
            loss.backward();
            if (child) torchup::barrier(*child);
            faults.at("after_backward");
            elastic.step([&] {
              faults.at("step");
              optimizer->step();
            });
            faults.at("stepped");
            optimizer->zero_grad();
            scheduler.step();
            faults.step = ++at.step;
            if (elastic.commit(at).stop) return checkpoint->save_and_requeue(at);
            faults.at("committed");
            const bool saves = checkpoint && (!options.has("rarely") || at.step % 4 == 0);
            if (saves) checkpoint->save(at, net, *optimizer, sampler, ddp, scheduler);
          }
        }
        end = at;
        groups = groups_of_gloo() - (child ? 1 : 0);
        return 0;
      },
      net, *optimizer, sampler, ddp, scheduler);
  if (code != 0) return code;
  if (options.has("twice")) elastic.run([&](torchup::Position) { return faults.at("again"), 0; }, net);

  torchup::NamedTensors tensors = fields_of(*optimizer);
  for (const auto& parameter : net->named_parameters())
    tensors.emplace_back("parameters." + parameter.key(), parameter.value());
  for (const auto& buffer : net->named_buffers()) tensors.emplace_back("buffers." + buffer.key(), buffer.value());
  const std::string file = "final." + std::to_string(group.rank());
  torchup::save_safetensors(options.out / (file + ".safetensors"), tensors);
  const nlohmann::json facts{
      {"pid", ::getpid()},
      {"forked", ::getpid() != loaded_by},
      {"loads", loads},
      {"epoch", end.epoch},
      {"step", end.step},
      {"scheduler", scheduler.last_lr()},
      {"lr", optimizer->param_groups()[0].options().get_lr()},
      {"groups", groups},
      {"world_size", group.size()},
      {"ranks", {group.rank(), worker.rank(), std::getenv("RANK") != nullptr ? std::atoi(std::getenv("RANK")) : 0}},
      {"restart_count", worker.restart_count()}};
  std::ofstream{options.out / (file + ".json")} << facts;
  group.shutdown();
  return 0;
}

const TestProgram program{"elastic_worker",
                          [](int argc, char** argv) { return torchup::worker_main(argc, argv, train); }};

}  // namespace elastic_worker
