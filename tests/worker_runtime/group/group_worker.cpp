// One rank of the scenarios of group_test.py and nodes_test.py.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <numeric>
#include <thread>

#include "tests/worker_runtime/rank_scenarios.hpp"
#include "tests/worker_runtime/test_program.hpp"

namespace group_worker {

using namespace rank_scenarios;

namespace {

using torch::Tensor;

void meet(torchup::ProcessGroup& group, Words) {
  auto ranks = torch::full({1}, group.rank());
  torchup::all_reduce(ranks, group);
  std::cout << "rank " << group.rank() << " of " << group.size() << " local " << group.local_rank() << " of "
            << group.local_size() << " " << group.backend() << " sum " << ranks.item<std::int64_t>() << std::endl;
}

void collectives(torchup::ProcessGroup& group, Words) {
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
void seeds(torchup::ProcessGroup& group, Words) {
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
void beside_python(torchup::ProcessGroup& group, Words) {
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

/// A connection of this process's own, watched by an epoll instance of its own beside the socket it was accepted from.
class OwnConnection {
 public:
  OwnConnection() {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const place = reinterpret_cast<sockaddr*>(&address);
    expect(::bind(listener_, place, size) == 0 && ::listen(listener_, 1) == 0, "a socket of its own");
    expect(::getsockname(listener_, place, &size) == 0, "its port");
    near_ = ::socket(AF_INET, SOCK_STREAM, 0);
    expect(::connect(near_, place, size) == 0, "a connection of its own");
    far_ = ::accept(listener_, nullptr, nullptr);
    const int epoll = ::epoll_create1(0);
    for (const int each : {listener_, near_, far_}) {
      epoll_event event{.events = EPOLLIN, .data = {}};
      expect(::epoll_ctl(epoll, EPOLL_CTL_ADD, each, &event) == 0, "an epoll instance of its own");
    }
  }
  [[nodiscard]] bool lives() const {
    char letter = 'a';
    return ::send(near_, &letter, 1, MSG_NOSIGNAL) == 1 && ::recv(far_, &letter, 1, 0) == 1;
  }

 private:
  int listener_ = -1, near_ = -1, far_ = -1;
};

/// The last rank does not come to a collective, and the group of the others is ended from another thread meanwhile.
void abort_while_waiting(torchup::ProcessGroup& group, Words) {
  std::vector<int> all(static_cast<std::size_t>(group.size()));
  std::iota(all.begin(), all.end(), 0);
  const OwnConnection before;
  auto lasting = *group.new_group(all);
  auto doomed = group.new_group(all);
  const OwnConnection after;
  if (group.rank() < group.size() - 1) {
    std::thread other{[doomed]() mutable {
      std::this_thread::sleep_for(std::chrono::milliseconds{300});
      doomed->abort();
    }};
    auto tensor = torch::ones({1000});
    const std::string error = error_of([&] { torchup::all_reduce(tensor, *doomed); });
    other.join();
    expect(!error.empty(), "an end of the collective");
    expect(error_of([&] { torchup::barrier(*doomed); }).find("aborted") != std::string::npos, "a refusal after it");
  }
  torchup::barrier(lasting);  // the last rank was silent until here
  doomed->abort();
  doomed.reset();  // waits for nobody
  expect(before.lives() && after.lives(), "connections that are none of the group's");
  auto tensor = torch::ones({1});
  torchup::all_reduce(tensor, lasting);
  torchup::all_reduce(tensor, group);
  expect(tensor.item<int>() == group.size() * group.size(), "groups that go on");
  lasting.shutdown();
  std::cout << "ok" << std::endl;
}

/// One rank is gone without a word; the group of the others is ended while an exception passes.
void abort_after_a_death(torchup::ProcessGroup& group, Words) {
  torchup::barrier(group);
  if (group.rank() == 1) std::_Exit(0);
  auto tensor = torch::ones({1000});
  const std::string error = error_of([&] { torchup::all_reduce(tensor, group); });
  expect(!error.empty(), "an end of the collective");
  group.abort();
  std::cout << "ok" << std::endl;
}

/// The last rank comes to the end of its group when rank 0, which serves the store, has gone.
void late_farewell(torchup::ProcessGroup& group, Words) {
  torchup::barrier(group);
  if (group.rank() > 0) {
    const auto store = group.store();
    const auto gone = [&] { return !error_of([&] { (void)store->check({"any"}); }).empty(); };
    while (!gone()) std::this_thread::sleep_for(std::chrono::milliseconds{50});
  }
  group.shutdown();
  std::cout << "ok" << std::endl;
}

}  // namespace

int run_as_program(int argc, char** argv) {
  return run(argc, argv,
             {{"meet", meet},
              {"collectives", collectives},
              {"seeds", seeds},
              {"beside_python", beside_python},
              {"abort_while_waiting", abort_while_waiting},
              {"abort_after_a_death", abort_after_a_death},
              {"late_farewell", late_farewell}});
}

const TestProgram program{"group_worker", run_as_program};

}  // namespace group_worker
