// One rank of the scenarios of group_test.py and ddp_test.py: group_worker SCENARIO [FOLDER].
// Prints what the scripts look at; a failed expectation or an exception ends it with 1 and a line on stderr.
#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <thread>
#include <torchup/torchup.hpp>

namespace {

using torch::Tensor;
using namespace std::chrono_literals;

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error{"expected: " + what};
}

/// What `action` throws, or nothing.
std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

std::string setting(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value ? value : otherwise;
}

torchup::ProcessGroup start() {
  torchup::ProcessGroupOptions options;
  options.init_method = setting("TEST_INIT_METHOD", "env://");
  options.backend = setting("TEST_BACKEND", "gloo");
  options.timeout = std::chrono::milliseconds{std::stoi(setting("TEST_TIMEOUT_MS", "20000"))};
  if (std::getenv("TEST_RANK")) options.rank = std::stoi(std::getenv("TEST_RANK"));
  if (std::getenv("TEST_WORLD_SIZE")) options.world_size = std::stoi(std::getenv("TEST_WORLD_SIZE"));
  return torchup::init_process_group(options);
}

void meet(torchup::ProcessGroup& group) {
  auto ranks = torch::full({1}, group.rank());
  torchup::all_reduce(ranks, group);
  std::cout << "rank " << group.rank() << " of " << group.size() << " local " << group.local_rank() << " of "
            << group.local_size() << " " << group.backend() << " sum " << ranks.item<std::int64_t>() << std::endl;
}

void collectives(torchup::ProcessGroup& group) {
  const int rank = group.rank(), size = group.size();
  const auto mine = torch::full({3}, static_cast<float>(rank + 1));
  const float sum = static_cast<float>(size * (size + 1)) / 2;
  const auto reduced = [&](torchup::ReduceOp op) {
    auto tensor = mine.clone();
    torchup::all_reduce(tensor, group, op);
    return tensor[2].item<float>();
  };
  expect(reduced(torchup::ReduceOp::sum) == sum, "a sum");
  expect(reduced(torchup::ReduceOp::average) == sum / static_cast<float>(size), "an average");
  expect(reduced(torchup::ReduceOp::max) == static_cast<float>(size), "a maximum");
  expect(reduced(torchup::ReduceOp::min) == 1, "a minimum");
  expect(reduced(torchup::ReduceOp::product) == (size == 3 ? 6.0F : 1.0F), "a product");

  auto from_last = mine.clone();
  torchup::broadcast(from_last, group, size - 1);
  expect(from_last[0].item<float>() == static_cast<float>(size), "the last rank's tensor");

  auto at_root = mine.clone();
  torchup::reduce(at_root, group, size - 1);
  expect(rank != size - 1 || at_root[0].item<float>() == sum, "the sum on the root");

  const auto all = torchup::all_gather(mine, group);
  expect(static_cast<int>(all.size()) == size && all.back()[0].item<float>() == static_cast<float>(size),
         "everybody's tensor");
  auto together = torch::empty({size * 3});
  torchup::all_gather_into(together, mine, group);
  expect(torch::equal(together, torch::cat(all)), "the same in one tensor");

  const auto gathered = torchup::gather(mine, group, 0);
  expect(rank != 0 || torch::equal(torch::cat(gathered), together), "everybody's tensor on the root");
  auto part = torch::empty({3});
  torchup::scatter(part, rank == 0 ? all : std::vector<Tensor>{}, group, 0);
  expect(torch::equal(part, mine), "my part of what the root scattered");

  auto shard = torch::empty({3});
  torchup::reduce_scatter_into(shard, together, group);
  expect(torch::equal(shard, mine * size), "my part of the sum");

  auto turned = torch::empty({size});
  torchup::all_to_all(turned, torch::arange(static_cast<float>(size)) + static_cast<float>(10 * rank), group);
  expect(torch::equal(turned, torch::arange(static_cast<float>(size)) * 10 + rank), "part r from rank r");

  if (size > 1) {
    auto letter = torch::full({2}, rank);
    if (rank == 0) torchup::send(letter, group, 1, 5);
    if (rank == 1) torchup::receive(letter, group, 0, 5);
    expect(rank > 1 || letter[0].item<std::int64_t>() == 0, "the letter of rank 0");
  }
  torchup::barrier(group);
  expect(error_of([&] { torchup::all_gather_into(torch::empty({1}), mine, group); }).find("all_gather_into") == 0,
         "a refusal of sizes that do not fit");

  std::vector<int> others(static_cast<std::size_t>(size - 1));
  std::iota(others.begin(), others.end(), 1);
  if (size > 1) {
    auto some = group.new_group(others);
    expect(some.has_value() == (rank > 0), "a group without rank 0");
    if (some) {
      auto tensor = mine.clone();
      torchup::all_reduce(tensor, *some);
      expect(tensor[0].item<float>() == sum - 1 && some->rank() == rank - 1 && some->name() == "1",
             "its sum, rank and name");
      some->shutdown();
    }
    const std::vector<int> twice{0, 0};
    expect(error_of([&] { (void)group.new_group(twice); }).find("twice") != std::string::npos,
           "a refusal of rank 0 twice");
  }
  group.shutdown();
  expect(error_of([&] { torchup::barrier(group); }).find("shut down") != std::string::npos, "a refusal after shutdown");
  std::cout << "ok" << std::endl;
}

/// Seeds by rank or alike; a deterministic run wants them alike on all ranks.
void seeds(torchup::ProcessGroup& group) {
  const auto draws = [&](torchup::SeedOptions options) {
    torchup::seed_everything(options, group);
    return torch::cat(torchup::all_gather(torch::rand({1}), group));
  };
  const auto by_rank = draws({.seed = 5}), again = draws({.seed = 5}), alike = draws({.seed = 5, .per_rank = false});
  expect(torch::equal(by_rank, again) && !by_rank[0].equal(by_rank[1]),
         "the same draws again, other ones on another rank");
  expect(alike[0].equal(alike[1]) && alike[0].equal(by_rank[0]), "the same draws on all ranks");
  expect(torchup::seed_everything({.seed = 5}, group) == 5 + static_cast<std::uint64_t>(group.rank()),
         "this rank's seed");
  const auto deterministic = [&](torchup::SeedOptions options) {
    options.deterministic = true;
    return error_of([&] { torchup::seed_everything(options, group); });
  };
  const auto mine = static_cast<std::uint64_t>(group.rank());
  expect(deterministic({.seed = mine}).find("rank 0 has seed 0, rank 1 has 1") != std::string::npos,
         "a refusal of two seeds");
  expect(deterministic({.threads = group.rank() + 1}).find("OMP_NUM_THREADS) 1, rank 1 has 2") != std::string::npos,
         "a refusal of two numbers of threads");
  expect(deterministic({.threads = 1}).empty() && at::globalContext().deterministicAlgorithms(),
         "deterministic algorithms");
  std::cout << "ok" << std::endl;
}

/// What a Python rank does in group_test.py, in the same order.
void beside_python(torchup::ProcessGroup& group) {
  auto tensor = torch::full({4}, static_cast<float>(group.rank() + 1));
  torchup::all_reduce(tensor, group);
  auto word = torch::full({2}, group.rank());
  torchup::broadcast(word, group, 1);
  const auto all = torchup::all_gather(torch::full({1}, group.rank()), group);
  const std::vector<int> both{0, 1};
  auto sub = group.new_group(both);
  auto again = torch::ones({1});
  if (sub) torchup::all_reduce(again, *sub);
  torchup::barrier(group);
  std::cout << "sum " << tensor[0].item<float>() << " word " << word[0].item<std::int64_t>() << " all "
            << all.back().item<std::int64_t>() << " sub " << again.item<float>() << std::endl;
  torch::nn::Linear net{2, 2};
  std::cout << "ddp: " << error_of([&] { torchup::DistributedDataParallel ddp(net, group); }) << std::endl;
  if (sub) sub->shutdown();
}

struct NetImpl : torch::nn::Module {
  torch::nn::Linear in, out;
  NetImpl(int width, int outputs) : in{4, width}, out{width, outputs} {
    register_module("in", in);
    register_module("out", out);
  }
  Tensor forward(Tensor input) { return out(torch::tanh(in(input))); }
};
TORCH_MODULE(Net);

/// Two heads in all the ways that forward may return tensors.
struct Heads {
  Tensor main;
  std::vector<std::optional<Tensor>> others;
};
template <class Visit>
void for_each_tensor(Heads& heads, Visit&& visit) {
  visit(heads.main);
  visit(heads.others);
}
struct ManyImpl : torch::nn::Module {
  torch::nn::Linear a{4, 2}, b{4, 2};
  ManyImpl() {
    register_module("a", a);
    register_module("b", b);
  }
  std::pair<std::map<std::string, Heads>, int> forward(Tensor input, double factor) {
    return {{{"heads", Heads{a(input) * factor, {b(input), std::nullopt}}}}, 7};
  }
};
TORCH_MODULE(Many);

/// Says no where a kernel on a GPU would.
struct PickyImpl : torch::nn::Module {
  torch::nn::Linear layer{4, 2};
  PickyImpl() { register_module("layer", layer); }
  Tensor forward(int, Tensor input) {
    TORCH_CHECK(input.device() == layer->weight.device(), "Expected all tensors to be on the same device");
    return layer(input);
  }
};
TORCH_MODULE(Picky);

/// Everything in which DDP differs by rank goes into this line, which must be the same on all ranks.
std::string fingerprint(const std::vector<Tensor>& tensors) {
  double sum = 0;
  for (const auto& tensor : tensors)
    sum += tensor.defined() ? tensor.detach().to(torch::kDouble).abs().sum().item<double>() : -1;
  std::ostringstream text;
  text.precision(17);
  text << sum;
  return text.str();
}
std::vector<Tensor> gradients(const torchup::DataParallelCore& ddp) {
  std::vector<Tensor> result;
  for (const auto& parameter : ddp.parameters()) result.push_back(parameter.grad());
  return result;
}

void shapes(torchup::ProcessGroup& group, const std::string& what) {
  const bool odd = group.rank() == group.size() - 1;
  Net net(odd && what == "width" ? 9 : 8, 3);
  if (odd && what == "count") net->out->bias.set_requires_grad(false);
  if (odd && what == "dtype") net->to(torch::kDouble);
  if (what == "frozen") net->register_parameter("frozen", torch::ones({odd ? 5 : 4}), /*requires_grad=*/false);
  if (what == "buffer") net->register_buffer("table", torch::ones({odd ? 5 : 4}));
  if (odd && what == "more") net->register_buffer("table", torch::ones({4}));
  std::cout << error_of([&] { torchup::DistributedDataParallel ddp(net, group); }) << std::endl;
}

void unused_error(torchup::ProcessGroup& group) {
  Many net;
  torchup::DistributedDataParallel ddp(net, group);
  ddp(torch::ones({2, 4}), 1.0).first.at("heads").main.sum().backward();
  std::cout << error_of([&] { ddp(torch::ones({2, 4}), 1.0); }) << std::endl;
  ddp.reset();
  auto [outputs, number] = ddp(torch::full({2, 4}, static_cast<float>(group.rank() + 1)), 1.0);
  (outputs.at("heads").main.sum() + outputs.at("heads").others[0]->sum()).backward();
  std::cout << "after reset " << fingerprint(gradients(ddp)) << std::endl;
}

void outputs(torchup::ProcessGroup& group) {
  Many net;
  torchup::DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
  auto [found, number] = ddp(torch::full({2, 4}, static_cast<float>(group.rank() + 1)), 2.0);
  expect(number == 7, "the number beside the tensors");
  found.at("heads").main.sum().backward();  // b's output is not in the loss
  expect(!net->b->weight.grad().defined(), "no gradient for what no rank used");
  std::cout << fingerprint(gradients(ddp)) << std::endl;
}

/// Every torch::optim optimizer, both kinds of zero_grad, gradients that are views.
void optimizers(torchup::ProcessGroup& group) {
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor>)>;
  const std::map<std::string, Make> kinds{
      {"sgd", [](auto p) { return std::make_unique<torch::optim::SGD>(p, 0.1); }},
      {"adam", [](auto p) { return std::make_unique<torch::optim::Adam>(p); }},
      {"adamw", [](auto p) { return std::make_unique<torch::optim::AdamW>(p); }},
      {"adagrad", [](auto p) { return std::make_unique<torch::optim::Adagrad>(p); }},
      {"rmsprop", [](auto p) { return std::make_unique<torch::optim::RMSprop>(p); }},
  };
  for (const auto& [name, make] : kinds)
    for (const bool set_to_none : {true, false}) {
      torch::manual_seed(1);
      Net net(8, 3);
      torchup::DistributedDataParallel ddp(net, group, {.bucket_cap_mb = 0.0001, .gradient_as_bucket_view = true});
      auto optimizer = make(ddp.parameters());
      for (int step = 0; step < 4; ++step) {
        optimizer->zero_grad(set_to_none);
        ddp(torch::full({2, 4}, static_cast<float>(group.rank() + step))).square().sum().backward();
        optimizer->step();
      }
      expect(ddp.bucket_layout().rebuilt && ddp.bucket_layout().buckets.size() == 2, "rebuilt buckets");
      std::cout << name << " " << set_to_none << " " << fingerprint(ddp.parameters()) << std::endl;
    }
}

void refusals(torchup::ProcessGroup& group) {
  Net net(8, 3);
  const auto refused = [&](torchup::DistributedDataParallelOptions options) {
    return error_of([&] { torchup::DistributedDataParallel ddp(net, group, options); });
  };
  expect(refused({.device_ids = {torch::Device{"cuda:0"}}})
                 .find("device_ids is [cuda:0], but the module's parameters are on cpu") != std::string::npos,
         "device_ids and both devices named");
  expect(refused({.device_ids = {torch::Device{"cuda:0"}, torch::Device{"cuda:1"}}})
                 .find("one process drives one device") != std::string::npos,
         "one device per process");
  expect(refused({.bucket_cap_mb_list = {1, 0}}).find("bucket_cap_mb_list") != std::string::npos, "a positive cap");
  torch::nn::Embedding sparse(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  expect(error_of([&] { torchup::DistributedDataParallel ddp(sparse, group); }).find("sparse") != std::string::npos,
         "sparse gradients refused");
  Net frozen(8, 3);
  for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  expect(
      error_of([&] { torchup::DistributedDataParallel ddp(frozen, group); }).find("is not needed") != std::string::npos,
      "nothing to train");

  torchup::DistributedDataParallel picky(Picky(), group);
  expect(error_of([&] {
           picky(1, torch::ones({2, 4}, torch::kMeta));
         }).find("argument 1 of forward is on meta, the module on cpu") == 0,
         "the argument and both devices named");
  torchup::DistributedDataParallel ddp(net, group);
  ddp(torch::ones({2, 4})).sum().backward();
  expect(error_of([&] { ddp.register_comm_hook(torchup::all_reduce_hook(group)); }).find("before the first forward") !=
             std::string::npos,
         "hooks come first");

  torchup::DistributedDataParallel fixed(Net(8, 3), group, {.static_graph = true});
  expect(error_of([&] {
           const auto guard = fixed.no_sync();
           fixed(torch::ones({2, 4}));
         }).find("static_graph") != std::string::npos,
         "no first iteration inside no_sync");
  std::cout << "ok" << std::endl;
}

/// A hook that fails on every rank once: the step is lost, the next one works.
void failing_hook(torchup::ProcessGroup& group) {
  torch::manual_seed(group.rank());
  Net net(8, 3);
  torchup::DistributedDataParallel ddp(net, group, {.gradient_as_bucket_view = true});
  int calls = 0;
  ddp.register_comm_hook([&calls, inner = torchup::all_reduce_hook(group)](const torchup::GradBucket& bucket) {
    if (++calls == 2) throw std::runtime_error{"no more"};
    return inner(bucket);
  });
  for (int step = 0; step < 3; ++step) {
    for (auto& parameter : ddp.parameters()) parameter.mutable_grad() = Tensor{};
    const auto input = torch::full({2, 4}, static_cast<float>(group.rank() + step));
    const auto error = error_of([&] { ddp(input).square().sum().backward(); });
    expect((step == 1) == (error == "no more"), "the hook's own exception out of backward, and only once: " + error);
    if (step == 1) ddp.reset();
  }
  std::cout << fingerprint(gradients(ddp)) << std::endl;
}

void clear_gradients(const torchup::DataParallelCore& ddp) {
  for (auto& parameter : ddp.parameters()) parameter.mutable_grad() = Tensor{};
}

/// A backward pass fails while the reduction of its first bucket is under way: rank 0 is through with the next step's
/// first bucket before rank 1 takes part in the failed one. The averages after reset() are right all the same.
void reset_in_flight(torchup::ProcessGroup& group, bool view) {
  torch::manual_seed(1);
  Net net(8, 3);
  torchup::DistributedDataParallel ddp(net, group, {.bucket_cap_mb = 0.0001, .gradient_as_bucket_view = view});
  enum { good, failing, after, steps };
  int step = good;
  net->in->weight.register_hook([&](const Tensor&) {  // the last bucket's; the first one is under way by now
    if (step == failing) throw std::runtime_error{"no more"};
    if (step == after && group.rank() == 0) group.store()->set("go", std::string{"1"});
  });
  const auto loss_of = [&](auto& model, int rank, int number) {
    return model(torch::full({2, 4}, 0.1F * static_cast<float>(rank + 1) + 0.3F * static_cast<float>(number)))
        .square()
        .sum();
  };
  for (; step < steps; ++step) {
    clear_gradients(ddp);
    const auto loss = loss_of(ddp, group.rank(), step);
    if (step == failing && group.rank() == 1) group.store()->wait({"go"});
    const auto error = error_of([&] { loss.backward(); });
    expect((step == failing) == (error == "no more"), "one failure: " + error);
    if (step == failing) ddp.reset();
  }
  expect(ddp.bucket_layout().buckets.size() == 2, "two buckets");
  const auto reduced = gradients(ddp);
  step = steps;
  const auto plain = [&](const Tensor& input) { return net->forward(input); };
  std::vector<Tensor> sums(reduced.size());
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto mine = torch::autograd::grad({loss_of(plain, rank, after)}, ddp.parameters());
    for (std::size_t index = 0; index < sums.size(); ++index)
      sums[index] = rank == 0 ? mine[index] : sums[index] + mine[index];
  }
  for (std::size_t index = 0; index < sums.size(); ++index)
    expect(torch::allclose(reduced[index], sums[index] / group.size()), "the mean of the ranks' gradients");
  std::cout << fingerprint(reduced) << std::endl;
}

/// The first iteration of a static graph fails in the middle of backward: after reset() it is made anew.
void static_first_fails(torchup::ProcessGroup& group) {
  const auto train = [&](bool fails) {
    torch::manual_seed(1);
    Net net(8, 3);
    torchup::DistributedDataParallel ddp(net, group, {.bucket_cap_mb = 0.0001, .static_graph = true});
    bool now = fails;
    net->in->weight.register_hook([&](const Tensor&) {
      if (now) throw std::runtime_error{"no more"};
    });
    std::string seen;
    for (int step = 0; step < 3; ++step) {
      const auto backward = [&] {
        clear_gradients(ddp);
        ddp(torch::full({2, 4}, static_cast<float>(group.rank() + step + 1))).square().sum().backward();
      };
      if (now) {
        expect(error_of(backward) == "no more", "the failure");
        now = false;
        ddp.reset();
      }
      backward();
      seen += fingerprint(gradients(ddp)) + " ";
    }
    expect(ddp.bucket_layout().rebuilt, "rebuilt buckets");
    return seen;
  };
  const auto undisturbed = train(false), disturbed = train(true);
  expect(undisturbed == disturbed, undisturbed + "and " + disturbed);
  std::cout << disturbed << std::endl;
}

/// PowerSGD in DDP itself, with several buckets that overlap; the steps' gradients.
void power_sgd(torchup::ProcessGroup& group) {
  torch::manual_seed(1);
  Net net(64, 48);
  torchup::DistributedDataParallel ddp(net, group, {.bucket_cap_mb = 0.001});
  const torchup::PowerSGD power{group, {.matrix_approximation_rank = 2, .start_powerSGD_iter = 2}};
  ddp.register_comm_hook(power.hook());
  for (int step = 0; step < 6; ++step) {
    clear_gradients(ddp);
    const auto input = torch::arange(8.0).view({2, 4}).to(torch::kFloat) * (0.1 * (group.rank() + 1) + 0.01 * step);
    ddp(input).square().sum().backward();
    std::cout << "step " << fingerprint(gradients(ddp)) << std::endl;
  }
  expect(power.statistics().after < power.statistics().before, "less on the wire");
}

/// The mean in bfloat16 on the wire, in DDP itself: the same on all ranks, and near the exact mean.
void wire_hook(torchup::ProcessGroup& group) {
  const auto train = [&](bool hook) {
    torch::manual_seed(1);
    Net net(64, 48);
    torchup::DistributedDataParallel ddp(net, group, {.bucket_cap_mb = 0.001});
    if (hook) ddp.register_comm_hook(torchup::bf16_wire_hook(group));
    for (int step = 0; step < 2; ++step) {
      clear_gradients(ddp);
      ddp(torch::full({2, 4}, 0.1F * static_cast<float>(group.rank() + 1))).square().sum().backward();
    }
    return gradients(ddp);
  };
  const auto exact = train(false), wire = train(true);
  bool differs = false;
  for (std::size_t index = 0; index < exact.size(); ++index) {
    expect(((exact[index] - wire[index]).abs() <= exact[index].abs().max() * 0x1p-7).all().item<bool>(),
           "nearly the mean");
    differs = differs || !torch::equal(exact[index], wire[index]);
  }
  expect(differs, "rounded numbers");
  std::cout << fingerprint(wire) << std::endl;
}

/// Ranks with fewest + rank batches. The last rank trains alone in the end, and everybody gets its model.
void join(torchup::ProcessGroup& group, bool by_active, bool view, const std::string& graph, int fewest) {
  torch::manual_seed(group.rank());
  Net net(8, 3);
  torchup::DistributedDataParallel ddp(net, group,
                                       {.bucket_cap_mb = 0.0001,
                                        .find_unused_parameters = graph == "unused",
                                        .gradient_as_bucket_view = view,
                                        .static_graph = graph == "static"});
  torch::optim::SGD optimizer{ddp.parameters(), 0.1};
  std::vector<std::string> seen;
  ddp.join(
      [&] {
        for (int step = 0; step < fewest + group.rank(); ++step) {
          optimizer.zero_grad();
          ddp(torch::full({2, 4}, static_cast<float>(step + 1))).square().mean().backward();
          seen.push_back(fingerprint(gradients(ddp)));
          optimizer.step();
        }
      },
      {.divide_by_initial_world_size = !by_active});
  std::cout << "model " << fingerprint(ddp.parameters()) << std::endl;
  for (const auto& line : seen) std::cout << "step " << line << std::endl;
  if (graph == "static" && fewest == 0)
    expect((group.rank() == 0) == (error_of([&] {
                                     ddp(torch::ones({2, 4}));
                                   }).find("had no input in the first iteration") != std::string::npos),
           "a rank that never saw the static graph is told so");
}

void join_throws(torchup::ProcessGroup& group) {
  Net net(8, 3);
  torchup::DistributedDataParallel ddp(net, group);
  std::cout << error_of([&] {
    ddp.join(
        [&] {
          for (int step = 0; step < 2 + group.rank(); ++step) ddp(torch::ones({2, 4})).sum().backward();
        },
        {.throw_on_early_termination = true});
  }) << std::endl;
}

/// Two backward passes of one forward: the second is not reduced, and debug mode says so.
void second_backward(torchup::ProcessGroup& group) {
  Net net(8, 3);
  torchup::DistributedDataParallel ddp(net, group);
  auto loss = ddp(torch::ones({2, 4})).sum();
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  ddp(torch::ones({2, 4})).sum().backward();
}

void die_in_backward(torchup::ProcessGroup& group) {
  Net net(8, 3);
  torchup::DistributedDataParallel ddp(net, group);
  ddp(torch::ones({2, 4})).sum().backward();
  if (group.rank() == group.size() - 1) std::_Exit(9);
  std::cout << error_of([&] {
                 for (int step = 0; step < 100; ++step) ddp(torch::ones({2, 4})).sum().backward();
               }).substr(0, 200)
            << std::endl;
  group.abort();
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  const std::string scenario = argc > 1 ? argv[1] : "";
  try {
    auto group = start();
    if (scenario == "meet")
      meet(group);
    else if (scenario == "collectives")
      collectives(group);
    else if (scenario == "seeds")
      seeds(group);
    else if (scenario == "beside_python")
      beside_python(group);
    else if (scenario == "shapes")
      shapes(group, argv[2]);
    else if (scenario == "unused_error")
      unused_error(group);
    else if (scenario == "outputs")
      outputs(group);
    else if (scenario == "optimizers")
      optimizers(group);
    else if (scenario == "refusals")
      refusals(group);
    else if (scenario == "failing_hook")
      failing_hook(group);
    else if (scenario == "reset_in_flight")
      reset_in_flight(group, argv[2] == std::string{"view"});
    else if (scenario == "static_first_fails")
      static_first_fails(group);
    else if (scenario == "power_sgd")
      power_sgd(group);
    else if (scenario == "wire_hook")
      wire_hook(group);
    else if (scenario == "join")
      join(group, argv[2] == std::string{"active"}, argv[3] == std::string{"view"}, argv[4], std::stoi(argv[5]));
    else if (scenario == "join_throws")
      join_throws(group);
    else if (scenario == "second_backward")
      second_backward(group);
    else if (scenario == "die_in_backward")
      die_in_backward(group);
    else
      throw std::runtime_error{"no scenario " + scenario};
    group.shutdown();
  } catch (const std::exception& error) {
    std::cerr << "group_worker: " << error.what() << std::endl;
    std::_Exit(1);
  }
}
