// Trains a small network with everything that a checkpoint must hold (momentum, batch norm, dropout, a schedule,
// shuffled data, several buckets), saves as it goes, and dies where it is told to. Driven by checkpoint_test.py.
#include <sys/inotify.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <torchup/torchup.hpp>

#include "tests/worker_runtime/test_program.hpp"

namespace resume_worker {

namespace {

using Options = std::map<std::string, std::string>;

Options parse(std::span<char*> arguments) {
  Options options{{"steps", "12"},      {"save-every", "3"},    {"die", ""},        {"die-step", "-1"},
                  {"die-rank", "0"},    {"must-resume", "0"},   {"keep-last", "3"}, {"width", "64"},
                  {"optimizer", "sgd"}, {"requeue-step", "-1"}, {"batch", "4"},     {"power-sgd", "0"},
                  {"cap", "0.001"}};
  for (std::size_t i = 1; i + 1 < arguments.size(); i += 2)
    options[std::string{arguments[i]}.substr(2)] = arguments[i + 1];
  return options;
}

/// An optimizer that the library does not know: it is stored as its own archive.
struct OwnOptimizer : torch::optim::Optimizer {
  explicit OwnOptimizer(std::vector<torch::Tensor> parameters)
      : Optimizer{{torch::optim::OptimizerParamGroup{std::move(parameters)}},
                  std::make_unique<torch::optim::SGDOptions>(0.1)} {}
  torch::Tensor step(LossClosure) override {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : param_groups()[0].params()) {
      auto& state = state_[parameter.unsafeGetTensorImpl()];
      if (!state) state = std::make_unique<torch::optim::SGDParamState>();
      auto& momentum = static_cast<torch::optim::SGDParamState&>(*state).momentum_buffer();
      momentum = momentum.defined() ? momentum * 0.5 + parameter.grad() : parameter.grad().clone();
      parameter -= param_groups()[0].options().get_lr() * momentum;
    }
    return {};
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::optim::serialize<torch::optim::SGDParamState, torch::optim::SGDOptions>(archive, *this);
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::optim::serialize<torch::optim::SGDParamState, torch::optim::SGDOptions>(archive, *this);
  }
};

[[noreturn]] void die() {
  ::raise(SIGKILL);
  std::abort();
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t width)
      : first{register_module("first", torch::nn::Linear{16, width})},
        norm{register_module("norm", torch::nn::BatchNorm1d{width})}, drop{register_module("drop",
                                                                                           torch::nn::Dropout{0.25})},
        second{register_module("second", torch::nn::Linear{width, width})}, last{register_module(
                                                                                "last", torch::nn::Linear{width, 4})} {}
  torch::Tensor forward(torch::Tensor x) {
    x = drop(norm(first(x)).relu());
    if (die_in_forward) die();
    x = second(x);
    if (die_in_backward) x.register_hook([](const torch::Tensor&) { die(); });
    return last(x.relu());
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout drop;
  torch::nn::Linear second, last;
  bool die_in_forward = false, die_in_backward = false;
};
TORCH_MODULE(Net);

/// Dies when a file whose name begins with `name` is made in a folder of `checkpoints` that is being written.
void die_at_file(const std::string& checkpoints, const std::string& name) {
  std::thread{[checkpoints, name] {
    const int notify = ::inotify_init1(IN_CLOEXEC);
    ::inotify_add_watch(notify, checkpoints.c_str(), IN_CREATE);
    alignas(inotify_event) std::array<char, 4096> buffer;
    for (;;) {
      const ssize_t size = ::read(notify, buffer.data(), buffer.size());
      for (ssize_t at = 0; at < size;) {
        const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
        at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
        const std::string made = event->name;
        if (made.starts_with("step-") && event->wd == 1) {
          if (name == "folder") die();
          ::inotify_add_watch(notify, (checkpoints + "/" + made).c_str(), IN_CREATE | IN_MOVED_TO);
        } else if (made.starts_with(name)) {
          die();
        }
      }
    }
  }}.detach();
}

int train(torchup::Worker& worker, std::span<char*> arguments) {
  Options options = parse(arguments);
  const auto number = [&](const char* name) { return std::stoll(options.at(name)); };
  auto group = torchup::init_process_group({.backend = "gloo"});
  torchup::seed_everything({.seed = 7}, group);
  Net net{number("width")};
  torchup::DistributedDataParallel ddp{net, group, {.bucket_cap_mb_list = {std::stod(options.at("cap")), 0.01}}};
  torchup::PowerSGD power_sgd{group, {.start_powerSGD_iter = 2}};
  const bool compress = number("power-sgd") != 0;
  if (compress) ddp.register_comm_hook(power_sgd.hook());
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (options.at("optimizer") == "adamw") {
    optimizer = std::make_unique<torch::optim::AdamW>(ddp.parameters(), torch::optim::AdamWOptions{0.01}.amsgrad(true));
  } else if (options.at("optimizer") == "rmsprop") {
    optimizer = std::make_unique<torch::optim::RMSprop>(
        ddp.parameters(), torch::optim::RMSpropOptions{0.01}.momentum(0.9).centered(true));
  } else if (options.at("optimizer") == "adagrad") {
    optimizer = std::make_unique<torch::optim::Adagrad>(ddp.parameters(), torch::optim::AdagradOptions{0.01});
  } else if (options.at("optimizer") == "fused") {
    optimizer = std::make_unique<torchup::FusedAdamW>(ddp.parameters());
  } else if (options.at("optimizer") == "zero") {
    optimizer = std::make_unique<torchup::ZeroRedundancyOptimizer<torchup::FusedSGD>>(
        ddp.parameters(), group, torchup::FusedSGDOptions{0.05}.momentum(0.9));
  } else if (options.at("optimizer") == "own") {
    optimizer = std::make_unique<OwnOptimizer>(ddp.parameters());
  } else if (options.at("optimizer") == "lbfgs") {
    optimizer = std::make_unique<torch::optim::LBFGS>(ddp.parameters(), torch::optim::LBFGSOptions{0.01}.max_iter(2));
  } else {
    std::vector<torch::optim::OptimizerParamGroup> groups;  // two groups with options of their own
    groups.emplace_back(net->first->parameters(),
                        std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions{0.1}.momentum(0.9)));
    std::vector<torch::Tensor> rest;
    for (auto& parameter : ddp.parameters()) {
      if (!parameter.is_same(net->first->weight) && !parameter.is_same(net->first->bias)) rest.push_back(parameter);
    }
    groups.emplace_back(rest);
    optimizer =
        std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions{0.05}.momentum(0.9).nesterov(true));
  }
  torchup::LrScheduler scheduler{*optimizer, torchup::CosineAnnealingLR{.t_max = 40}};

  constexpr std::size_t samples = 70;  // neither a multiple of the batch nor of the world size
  torch::Generator generator = torch::make_generator<torch::CPUGeneratorImpl>(123);
  const torch::Tensor inputs = torch::randn({static_cast<std::int64_t>(samples), 16}, generator);
  const torch::Tensor targets = torch::randint(0, 4, {static_cast<std::int64_t>(samples)}, generator, torch::kInt64);
  torchup::DistributedSampler sampler{samples, group, {.seed = 11}};

  std::string folder = options.at("folder");
  if (const auto mark = folder.find("RANK"); mark != std::string::npos)
    folder.replace(mark, 4, std::to_string(worker.rank()));
  torchup::Checkpoint checkpoint{
      folder, group, {.keep_last = static_cast<int>(number("keep-last")), .must_resume = number("must-resume") != 0}};
  const auto with_parts = [&](auto&& use) {
    return compress ? use(net, *optimizer, sampler, ddp, scheduler, power_sgd)
                    : use(net, *optimizer, sampler, ddp, scheduler);
  };
  auto at = with_parts([&](auto&... parts) { return checkpoint.resume(parts...); });
  std::printf("rank %d begins at epoch %lld step %lld\n", worker.rank(), static_cast<long long>(at.epoch),
              static_cast<long long>(at.step));
  std::fflush(stdout);

  const bool dies = worker.rank() == number("die-rank");
  const std::string& where = options.at("die");
  if (dies && where.starts_with("write:")) die_at_file(folder, where.substr(6));
  for (;; ++at.epoch) {
    sampler.set_epoch(at.epoch);
    sampler.reset();
    while (const auto rows = sampler.next(static_cast<std::size_t>(number("batch")))) {
      const torch::Tensor chosen = torch::tensor(std::vector<std::int64_t>(rows->begin(), rows->end()));
      const bool now = dies && at.step + 1 == number("die-step");
      net->die_in_forward = now && where == "forward";
      net->die_in_backward = now && where == "backward";
      const auto closure = [&] {
        optimizer->zero_grad();
        auto loss =
            torch::nn::functional::cross_entropy(ddp(inputs.index_select(0, chosen)), targets.index_select(0, chosen));
        loss.backward();
        return loss;
      };
      if (options.at("optimizer") == "lbfgs") {
        optimizer->step(closure);
      } else {
        closure();
        optimizer->step();
      }
      scheduler.step();
      ++at.step;
      worker.end_step(at.step);
      if (at.step == number("requeue-step"))
        return with_parts([&](auto&... parts) { return checkpoint.save_and_requeue(at, parts...); });
      if (at.step % number("save-every") == 0) with_parts([&](auto&... parts) { checkpoint.save(at, parts...); });
      if (at.step == number("steps")) {
        torchup::NamedTensors result;
        for (const auto& item : net->named_parameters()) result.emplace_back(item.key(), item.value());
        for (const auto& item : net->named_buffers()) result.emplace_back(item.key(), item.value());
        result.emplace_back("draw", torch::rand({4}));
        torchup::save_safetensors(options.at("out") + "/rank" + std::to_string(worker.rank()), result);
        checkpoint.wait();
        group.shutdown();
        return 0;
      }
    }
  }
}

}  // namespace

int run_as_program(int argc, char** argv) { return torchup::worker_main(argc, argv, train); }

const TestProgram program{"resume_worker", run_as_program};

}  // namespace resume_worker
