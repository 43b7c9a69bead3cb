// One rank of the C++ side of parity.py: for every case, reads weights and inputs, trains, writes gradients and
// weights.
//
// usage: parity_worker FOLDER
//   FOLDER/cases                 one case a line: "name key=value …"
//   FOLDER/<model>.weights       parameters (each once), then buffers, in order
//   FOLDER/inputs.<rank>         one tensor per step and micro-step, of 3 * 8 * 8 numbers per sample
//   FOLDER/<case>.<rank>.ours    written: per step the gradients in order (a lone 0 for "none"), at the end weights,
//   buffers
#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>
#include <torchup/torchup.hpp>
#include <unordered_set>

#include "models.hpp"
#include "tests/worker_runtime/test_program.hpp"

namespace parity_worker {

namespace {

using torch::Tensor;

/// Tensors back to back: dtype code, dimensions, sizes, contiguous data. parity.py has the other half.
constexpr std::array dtypes{torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kLong};

class Reader {
 public:
  explicit Reader(const std::string& path) : file_{path, std::ios::binary} {
    if (!file_) throw std::runtime_error{"cannot open " + path};
  }
  Tensor next() {
    std::array<std::int64_t, 2> head{};
    read(head.data(), sizeof head);
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(head[1]));
    read(sizes.data(), sizes.size() * sizeof(std::int64_t));
    auto tensor = torch::empty(sizes, dtypes.at(static_cast<std::size_t>(head[0])));
    read(tensor.data_ptr(), tensor.nbytes());
    return tensor;
  }

 private:
  void read(void* to, std::size_t bytes) {
    if (!file_.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes)))
      throw std::runtime_error{"input ends early"};
  }
  std::ifstream file_;
};

class Writer {
 public:
  explicit Writer(const std::string& path) : file_{path, std::ios::binary} {}
  void write(const Tensor& tensor) {
    const auto flat = tensor.defined() ? tensor.detach().contiguous() : torch::zeros({});
    const auto dtype = std::find(dtypes.begin(), dtypes.end(), flat.scalar_type()) - dtypes.begin();
    const std::array<std::int64_t, 2> head{dtype, flat.dim()};
    file_.write(reinterpret_cast<const char*>(head.data()), sizeof head);
    file_.write(reinterpret_cast<const char*>(flat.sizes().data()),
                static_cast<std::streamsize>(flat.sizes().size() * sizeof(std::int64_t)));
    file_.write(static_cast<const char*>(flat.data_ptr()), static_cast<std::streamsize>(flat.nbytes()));
  }

 private:
  std::ofstream file_;
};

struct Case {
  std::string name, model, hook;
  bool view = false, set_to_none = true, unused = false, static_graph = false, evaluate = false, resume = false;
  int accumulate = 1;
  double cap = 0, momentum = 0;
  std::vector<double> caps;
};

Case parse(const std::string& line) {
  Case result;
  std::istringstream words{line};
  words >> result.name;
  for (std::string word; words >> word;) {
    const auto key = word.substr(0, word.find('=')), value = word.substr(word.find('=') + 1);
    if (key == "model") result.model = value;
    if (key == "hook") result.hook = value;
    if (key == "view") result.view = value == "1";
    if (key == "set_to_none") result.set_to_none = value == "1";
    if (key == "unused") result.unused = value == "1";
    if (key == "static") result.static_graph = value == "1";
    if (key == "evaluate") result.evaluate = value == "1";
    if (key == "resume") result.resume = value == "1";
    if (key == "accumulate") result.accumulate = std::stoi(value);
    if (key == "momentum") result.momentum = std::stod(value);
    if (key == "cap") result.cap = std::stod(value);
    if (key == "caps") {
      std::istringstream list{value};
      for (std::string cap; std::getline(list, cap, ',');) result.caps.push_back(std::stod(cap));
    }
  }
  return result;
}

/// A hook of a user's own: a sum, then a second stage that halves and sums again.
torchup::CommHook own_hook(const torchup::ProcessGroup& group) {
  return [group](const torchup::GradBucket& bucket) {
    auto buffer = bucket.buffer();
    torchup::BucketReduction reduction{
        .result = buffer, .work = torchup::all_reduce_async(buffer, group), .stages = {}};
    reduction.stages.emplace_back([buffer, group]() mutable {
      buffer.mul_(0.5);
      return torchup::all_reduce_async(buffer, group);
    });
    return reduction;
  };
}

std::vector<Tensor> state_of(const parity::Model& model) {
  std::vector<Tensor> state;
  std::unordered_set<void*> seen;
  for (const auto& parameter : model.parameters())
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) state.push_back(parameter);
  for (const auto& buffer : model.buffers()) state.push_back(buffer);
  return state;
}

struct Training {
  std::shared_ptr<parity::Model> model;
  torchup::DistributedDataParallel<std::shared_ptr<parity::Model>> ddp;
  torch::optim::SGD optimizer;

  Training(const Case& test, std::shared_ptr<parity::Model> its_model, const torchup::ProcessGroup& group)
      : model{its_model}, ddp{its_model,
                              group,
                              {.bucket_cap_mb = test.cap > 0 ? std::optional{test.cap} : std::nullopt,
                               .bucket_cap_mb_list = test.caps,
                               .find_unused_parameters = test.unused,
                               .gradient_as_bucket_view = test.view,
                               .static_graph = test.static_graph}},
        optimizer{ddp.parameters(), torch::optim::SGDOptions(0.05).momentum(test.momentum)} {
    if (test.hook == "allreduce") ddp.register_comm_hook(torchup::all_reduce_hook(group));
    if (test.hook == "fp16") ddp.register_comm_hook(torchup::fp16_compress_hook(group));
    if (test.hook == "bf16") ddp.register_comm_hook(torchup::bf16_compress_hook(group));
    if (test.hook == "own") ddp.register_comm_hook(own_hook(group));
  }
};

constexpr int steps = 6;

void run(const std::string& folder, const Case& test, const torchup::ProcessGroup& group) {
  const int rank = group.rank();
  auto model = parity::make_model(test.model, rank);
  {
    const torch::NoGradGuard no_grad;
    Reader weights{folder + "/" + test.model + ".weights"};
    // Other ranks start with something else: construction must bring rank 0's.
    for (auto& tensor : state_of(*model)) tensor.copy_(weights.next()).add_(rank);
  }
  Reader inputs{folder + "/inputs." + std::to_string(rank)};
  Writer results{folder + "/" + test.name + "." + std::to_string(rank) + ".ours"};
  auto training = std::make_unique<Training>(test, model, group);

  for (int step = 0; step < steps; ++step) {
    if (test.resume && step == steps / 2) {
      // As from a checkpoint: new objects, the old weights and buckets.
      const auto layout = training->ddp.bucket_layout();
      auto fresh = parity::make_model(test.model, rank);
      const torch::NoGradGuard no_grad;
      const auto from = state_of(*model);
      const auto to = state_of(*fresh);
      for (std::size_t i = 0; i < to.size(); ++i) to[i].detach().copy_(from[i]);
      model = fresh;
      training = std::make_unique<Training>(test, model, group);
      training->ddp.restore_bucket_layout(layout);
    }
    auto& [module, ddp, optimizer] = *training;
    optimizer.zero_grad(test.set_to_none);
    for (int part = 0; part < test.accumulate; ++part) {
      const auto batch = inputs.next();
      const auto guard = ddp.no_sync(part + 1 < test.accumulate);
      const auto flat = test.model == "convolution" ? batch : batch.slice(1, 0, 17).contiguous();
      const auto [output, others] = ddp(flat, step + rank);
      output.square().mean().backward();
    }
    for (const auto& parameter : ddp.parameters()) results.write(parameter.grad());
    optimizer.step();
    if (test.evaluate) {
      const torch::NoGradGuard no_grad;
      ddp.eval();
      ddp(torch::zeros({2, test.model == "convolution" ? 192 : 17}), 0);
      ddp.train();
    }
  }
  for (const auto& tensor : state_of(*model)) results.write(tensor);
}

}  // namespace

int run_as_program(int argc, char** argv) {
  if (argc != 2) return 2;
  torch::set_num_threads(1);
  std::string current = "start";
  try {
    const std::string folder = argv[1];
    auto group = torchup::init_process_group({.backend = "gloo", .timeout = std::chrono::seconds{60}});
    std::ifstream cases{folder + "/cases"};
    for (std::string line; std::getline(cases, line);) {
      current = line;
      run(folder, parse(line), group);
    }
    group.shutdown();
  } catch (const std::exception& error) {
    std::cerr << "parity_worker: " << current << ": " << error.what() << '\n';
    std::_Exit(1);  // without waiting for the others
  }
  return 0;
}

const TestProgram program{"parity_worker", run_as_program};

}  // namespace parity_worker
