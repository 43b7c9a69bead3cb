#include "worker_runtime/store/client_store.hpp"

#include <torch/torch.h>

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

/// PyTorch's server; the client goes the same way to ours, which tests/net shows.
c10::intrusive_ptr<c10d::TCPStore> pytorch_server() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("localhost", options);
}

}  // namespace

TEST_CASE("the client store answers every call of c10d's interface", "[worker_runtime][client_store]") {
  const auto server = pytorch_server();
  const c10::intrusive_ptr<c10d::Store> store =
      c10::make_intrusive<ClientStore>("localhost", server->getPort(), 5000ms);
  store->set("a", "1");
  REQUIRE(store->get_to_str("a") == "1");
  REQUIRE(server->get_to_str("a") == "1");
  REQUIRE(store->add("n", 41) == 41);
  REQUIRE(server->add("n", 1) == 42);
  REQUIRE(store->compareSet("a", std::string{"1"}, std::string{"2"}) == "2");
  REQUIRE(store->check({"a", "n"}));
  REQUIRE_FALSE(store->check({"absent"}));
  REQUIRE(store->getNumKeys() == 2);
  REQUIRE(store->hasExtendedApi());
  store->append("a", {'3'});
  store->multiSet({"x", "y"}, {{'x'}, {'y'}});
  REQUIRE(store->multiGet({"y", "a"}) == std::vector<std::vector<std::uint8_t>>{{'y'}, {'2', '3'}});
  REQUIRE(store->deleteKey("x"));
  store->queuePush("q", {'e'});
  REQUIRE(store->queueLen("q") == 1);
  REQUIRE(store->queuePop("q", true) == std::vector<std::uint8_t>{'e'});
  REQUIRE_THROWS_AS(store->queuePop("q", false), c10::DistStoreError);
  REQUIRE_THROWS_AS(store->wait({"absent"}, 20ms), c10::DistStoreError);
  store->setTimeout(30ms);
  REQUIRE(store->getTimeout() == 30ms);
  REQUIRE_THROWS_AS(store->get("absent"), c10::DistStoreError);
  store->setTimeout(5000ms);
  store->clone()->set("cloned", "1");
  REQUIRE(store->get_to_str("cloned") == "1");
}

TEST_CASE("a wait that can be given up leaves the connection as it was", "[worker_runtime][client_store]") {
  const auto server = pytorch_server();
  ClientStore store{"localhost", server->getPort(), 5000ms};
  const int wake = ::eventfd(0, EFD_CLOEXEC);
  std::atomic<bool> ending{false};
  int asked = 0;
  const auto give_up = [&] { return ++asked == 3 || ending; };
  SECTION("by what is asked at every pause") {
    REQUIRE_FALSE(store.wait_unless("absent", 10ms, wake, give_up));
    REQUIRE(asked == 3);
  }
  SECTION("by the descriptor, long before the next pause") {
    std::jthread ends{[&] {
      ending = true;
      const std::uint64_t one = 1;
      REQUIRE(::write(wake, &one, sizeof one) == sizeof one);
    }};
    REQUIRE_FALSE(store.wait_unless("absent", 1h, wake, give_up));
  }
  SECTION("and not when the key comes") {
    std::jthread sets{[&] { server->c10d::Store::set("comes", std::string{"1"}); }};
    REQUIRE(store.wait_unless("comes", 1h, wake, [] { return false; }));
  }
  REQUIRE(store.add("n", 2) == 2);
  ::close(wake);
}

TEST_CASE("nobody at the address is c10's network or time-out error", "[worker_runtime][client_store]") {
  const std::uint16_t port = pytorch_server()->getPort();  // gone again
  REQUIRE_THROWS_AS(ClientStore("localhost", port, 100ms), c10::DistError);
}

TEST_CASE("gloo's process group meets on the client store", "[worker_runtime][client_store]") {
  const auto server = pytorch_server();
  constexpr int size = 3;
  std::vector<std::thread> ranks;
  std::vector<float> sums(size);
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] {
      const auto store = c10::make_intrusive<c10d::PrefixStore>(
          "group", c10::make_intrusive<ClientStore>("localhost", server->getPort(), 20000ms));
      const auto options = c10d::ProcessGroupGloo::Options::create(20s);
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
      c10d::ProcessGroupGloo group{store, rank, size, options};
      std::vector<at::Tensor> tensors{torch::full({4}, static_cast<float>(rank + 1))};
      group.allreduce(tensors)->wait();
      sums[static_cast<std::size_t>(rank)] = tensors[0][0].item<float>();
    });
  for (auto& rank : ranks) rank.join();
  REQUIRE(sums == std::vector<float>(size, 6.0F));
}
