// One rank of the scenarios of ddp_test.py.
#include <limits>
#include <thread>

#include "tests/worker_runtime/ddp/models.hpp"
#include "tests/worker_runtime/rank_scenarios.hpp"
#include "tests/worker_runtime/test_program.hpp"

namespace ddp_worker {

using namespace rank_scenarios;

namespace {

using namespace std::chrono_literals;

void shapes(torchup::ProcessGroup& group, Words words) {
  const std::string what = words[0];
  const bool odd = group.rank() == group.size() - 1;
  Net net(odd && what == "width" ? 9 : 8, 3);
  if (odd && what == "count") net->out->bias.set_requires_grad(false);
  if (odd && what == "dtype") net->to(torch::kDouble);
  if (what == "frozen") net->register_parameter("frozen", torch::ones({odd ? 5 : 4}), /*requires_grad=*/false);
  if (what == "buffer") net->register_buffer("table", torch::ones({odd ? 5 : 4}));
  if (odd && what == "more") net->register_buffer("table", torch::ones({4}));
  // Who finds a difference ends, also while another one still connects with it.
  if (group.store()->add("connected", 1) == group.size()) group.store()->set("all connected", std::string{"1"});
  group.store()->wait({"all connected"});
  std::cout << error_of([&] { torchup::DistributedDataParallel ddp(net, group); }) << std::endl;
}

void unused_error(torchup::ProcessGroup& group, Words) {
  Many net;
  torchup::DistributedDataParallel ddp(net, group);
  ddp(torch::ones({2, 4}), 1.0).first.at("heads").main.sum().backward();
  std::cout << error_of([&] { ddp(torch::ones({2, 4}), 1.0); }) << std::endl;
  ddp.reset();
  auto [outputs, number] = ddp(torch::full({2, 4}, static_cast<float>(group.rank() + 1)), 1.0);
  (outputs.at("heads").main.sum() + outputs.at("heads").others[0]->sum()).backward();
  std::cout << "after reset " << fingerprint(gradients(ddp)) << std::endl;
}

void outputs(torchup::ProcessGroup& group, Words) {
  Many net;
  torchup::DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
  auto [found, number] = ddp(torch::full({2, 4}, static_cast<float>(group.rank() + 1)), 2.0);
  expect(number == 7, "the number beside the tensors");
  found.at("heads").main.sum().backward();  // b's output is not in the loss
  expect(!net->b->weight.grad().defined(), "no gradient for what no rank used");
  std::cout << fingerprint(gradients(ddp)) << std::endl;
}

/// Every torch::optim optimizer, both kinds of zero_grad, gradients that are views.
void optimizers(torchup::ProcessGroup& group, Words) {
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

void refusals(torchup::ProcessGroup& group, Words) {
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
  constexpr double infinity = std::numeric_limits<double>::infinity();
  expect(refused({.bucket_cap_mb = infinity}).find("bucket_cap_mb is inf") != std::string::npos, "a finite cap");
  expect(refused({.bucket_cap_mb_list = {infinity}}).find("list holds inf") != std::string::npos, "finite caps");
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
void failing_hook(torchup::ProcessGroup& group, Words) {
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

/// What a hook gives back may have any shape and memory order: the gradients are those without a hook.
void hook_results(torchup::ProcessGroup& group, Words) {
  using Shape = std::function<Tensor(const Tensor& buffer)>;
  const auto train = [&](const Shape& shape, bool view) {
    Gaps net;
    expect(!net->gaps.is_non_overlapping_and_dense(), "gaps");
    torchup::DistributedDataParallel ddp(net, group, {.gradient_as_bucket_view = view});
    if (shape)
      ddp.register_comm_hook([&, inner = torchup::all_reduce_hook(group)](const torchup::GradBucket& bucket) {
        auto reduction = inner(bucket);
        reduction.work.wait();
        return torchup::BucketReduction{.result = shape(bucket.buffer()), .work = {}, .stages = {}};
      });
    std::vector<Tensor> seen;
    for (int step = 0; step < 3; ++step) {  // the second one lays out the buckets anew, the third finds gradients
      if (step < 2)
        for (auto& parameter : ddp.parameters()) parameter.mutable_grad() = Tensor{};
      else
        for (auto& parameter : ddp.parameters()) parameter.mutable_grad().zero_();
      ddp(torch::arange(1, 9).view({2, 4}).to(torch::kFloat) * (group.rank() + 1 + step)).backward();
      for (const auto& gradient : gradients(ddp)) seen.push_back(gradient.clone());
    }
    expect(ddp.bucket_layout().buckets.size() == 1, "one bucket");
    return seen;
  };
  const std::map<std::string, Shape> shapes{
      {"a matrix",
       [](const Tensor& buffer) {
         return buffer.clone().view({2, 10});
       }},
      {"a column",
       [](const Tensor& buffer) {
         return buffer.clone().view({20, 1});
       }},
      {"the buffer as a matrix",
       [](const Tensor& buffer) {
         return buffer.view({4, 5});
       }},
      {"the buffer, negated by a view",
       [](Tensor buffer) {
         buffer.neg_();
         return torch::_neg_view(buffer);
       }},
      {"a matrix by columns",
       [](const Tensor& buffer) {
         return buffer.view({4, 5}).t().contiguous().t();
       }},
      {"the buffer by columns",
       [](const Tensor& buffer) {
         return buffer.view({5, 4}).t().copy_(buffer.clone().view({4, 5}));
       }},
      {"another dtype", [](const Tensor& buffer) { return buffer.to(torch::kHalf); }},
  };
  for (const bool view : {false, true}) {
    const auto wanted = train({}, view);
    for (const auto& [name, shape] : shapes) {
      const auto seen = train(shape, view);
      for (std::size_t index = 0; index < wanted.size(); ++index)
        expect(seen[index].scalar_type() == torch::kFloat && torch::equal(seen[index], wanted[index]),
               "the same gradients by " + name);
    }
  }
}

/// A backward pass fails while the reduction of its first bucket is under way: rank 0 is through with the next step's
/// first bucket before rank 1 takes part in the failed one. The averages after reset() are right all the same.
void reset_in_flight(torchup::ProcessGroup& group, Words words) {
  const bool view = words[0] == std::string{"view"};
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
void static_first_fails(torchup::ProcessGroup& group, Words) {
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
void power_sgd(torchup::ProcessGroup& group, Words) {
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
void wire_hook(torchup::ProcessGroup& group, Words) {
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
void join(torchup::ProcessGroup& group, Words words) {
  const bool by_active = words[0] == std::string{"active"}, view = words[1] == std::string{"view"};
  const std::string graph = words[2];
  const int fewest = std::stoi(words[3]);
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

void join_throws(torchup::ProcessGroup& group, Words) {
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
void second_backward(torchup::ProcessGroup& group, Words) {
  Net net(8, 3);
  torchup::DistributedDataParallel ddp(net, group);
  auto loss = ddp(torch::ones({2, 4})).sum();
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  ddp(torch::ones({2, 4})).sum().backward();
}

void die_in_backward(torchup::ProcessGroup& group, Words) {
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

int run_as_program(int argc, char** argv) {
  return run(argc, argv,
             {{"shapes", shapes},
              {"unused_error", unused_error},
              {"outputs", outputs},
              {"optimizers", optimizers},
              {"refusals", refusals},
              {"failing_hook", failing_hook},
              {"hook_results", hook_results},
              {"reset_in_flight", reset_in_flight},
              {"static_first_fails", static_first_fails},
              {"power_sgd", power_sgd},
              {"wire_hook", wire_hook},
              {"join", join},
              {"join_throws", join_throws},
              {"second_backward", second_backward},
              {"die_in_backward", die_in_backward}});
}

const TestProgram program{"ddp_worker", run_as_program};

}  // namespace ddp_worker
