// The client against our own server; or, when TORCHUP_STORE_PORT names one, against the server that listens there
// (store_client_interop.py: both of PyTorch's).
#include "rendezvous/net/store/store_client.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <thread>

#include "tests/support/store_server_thread.hpp"

using namespace torchup;
using namespace torchup::test;
using namespace std::chrono_literals;

namespace {

class Fixture {
 public:
  Fixture() {
    if (const char* port = std::getenv("TORCHUP_STORE_PORT")) {
      port_ = Port{static_cast<std::uint16_t>(std::atoi(port))};
    } else {
      server_ = std::make_unique<ServerThread>();
      port_ = server_->port();
    }
  }
  [[nodiscard]] bool ours() const { return server_ != nullptr; }
  /// As ServerThread::until_waiting; PyTorch's server tells nobody, and is asked a little later.
  void until_waiting(std::size_t count) const {
    if (server_) return server_->until_waiting(count);
    std::this_thread::sleep_for(50ms);
  }
  [[nodiscard]] std::unique_ptr<StoreClient> client(Duration timeout = 10s) const {
    auto made = StoreClient::connect({"localhost", port_, timeout});
    INFO((made ? "" : made.error().message()));
    REQUIRE(made.has_value());
    return std::move(*made);
  }

 private:
  std::unique_ptr<ServerThread> server_;
  Port port_{0};
};

}  // namespace

TEST_CASE_METHOD(Fixture, "values go there and come back", "[net][store_client]") {
  const auto client = this->client();
  REQUIRE(client->extended() == ours());
  const std::string binary{"\0\xff/", 3}, large(5'000'000, 'x');
  REQUIRE(ok(client->set("c1/a", "1")));
  REQUIRE(ok(client->set("c1/b", binary)));
  REQUIRE(ok(client->set("c1/large", large)));
  REQUIRE(ok(client->set("c1/empty", "")));
  REQUIRE(text(client->get("c1/a")) == "1");
  REQUIRE(text(client->get("c1/large")) == large);
  const std::string keys[] = {"c1/b", "c1/large", "c1/empty"};
  const auto values = client->multi_get(keys);
  REQUIRE(values.has_value());
  REQUIRE((*values)[0].view() == binary);
  REQUIRE((*values)[1].view() == large);
  REQUIRE((*values)[2].size() == 0);
  REQUIRE(ok(client->append("c1/a", "23")));
  REQUIRE(text(client->get("c1/a")) == "123");
}

TEST_CASE_METHOD(Fixture, "multi_set sets all", "[net][store_client]") {
  const auto client = this->client();
  const std::string keys[] = {"c2/a", "c2/b"};
  const std::string large(3'000'000, 'y');
  const std::string_view values[] = {large, "2"};
  REQUIRE(ok(client->multi_set(keys, values)));
  REQUIRE(text(client->get("c2/a")) == large);
  REQUIRE(text(client->get("c2/b")) == "2");
  REQUIRE(client->multi_set(keys, std::span{values}.first(1)).error().code == errc::bad_value);
}

TEST_CASE_METHOD(Fixture, "numbers, checks, deletions, comparisons", "[net][store_client]") {
  const auto client = this->client();
  REQUIRE(*client->add("c3/n", 5) == 5);
  REQUIRE(*client->add("c3/n", -7) == -2);
  REQUIRE(text(client->get("c3/n")) == "-2");
  const std::string both[] = {"c3/n", "c3/absent"};
  REQUIRE(*client->check(std::span{both}.first(1)));
  REQUIRE_FALSE(*client->check(both));
  const auto before = *client->num_keys();
  REQUIRE(*client->delete_key("c3/n"));
  REQUIRE_FALSE(*client->delete_key("c3/n"));
  REQUIRE(*client->num_keys() == before - 1);
  REQUIRE(text(client->compare_set("c3/c", "wrong", "x")) == "wrong");
  REQUIRE(text(client->compare_set("c3/c", "", "x")) == "x");
  REQUIRE(text(client->compare_set("c3/c", "wrong", "y")) == "x");
  REQUIRE(text(client->compare_set("c3/c", "x", "y")) == "y");
}

TEST_CASE_METHOD(Fixture, "a wait ends when the key comes", "[net][store_client]") {
  const auto client = this->client(), other = this->client();
  std::thread setter{[&] {
    until_waiting(1);
    (void)other->set("c4/k", "late");
  }};
  REQUIRE(text(client->get("c4/k")) == "late");
  setter.join();
}

TEST_CASE_METHOD(Fixture, "a time-out names its keys and leaves the connection in step", "[net][store_client]") {
  const auto client = this->client();
  const std::string keys[] = {"c5/a", "c5/b"};
  const auto begin = std::chrono::steady_clock::now();
  const auto waited = client->wait(keys, 120ms);
  REQUIRE(waited.has_error());
  REQUIRE(std::chrono::steady_clock::now() - begin >= 120ms);
  REQUIRE(waited.error().code == boost::system::errc::timed_out);
  REQUIRE(waited.error().context == "wait timeout after 120ms, keys: /c5/a, /c5/b");
  client->set_timeout(50ms);
  REQUIRE(client->get("c5/a").error().context == "wait timeout after 50ms, keys: /c5/a");
  client->set_timeout(5s);
  REQUIRE(*client->add("c5/n", 1) == 1);
}

TEST_CASE_METHOD(Fixture, "an answer that crosses the cancellation counts", "[net][store_client]") {
  const auto client = this->client(), other = this->client();
  int came = 0, timed_out = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string key = "c6/" + std::to_string(i);
    std::thread setter{[&] {
      std::this_thread::sleep_for(700us + i % 30 * 20us);
      (void)other->set(key, "v");
    }};
    client->set_timeout(1ms);
    const auto value = client->get(key);
    setter.join();
    value ? ++came : ++timed_out;
    if (value) REQUIRE(value->view() == "v");
    client->set_timeout(10s);
    const auto next = client->add("c6/n", 1);
    INFO((next ? "in step" : next.error().message()));
    REQUIRE(next.has_value());
    REQUIRE(*next == i + 1);
  }
  REQUIRE(came + timed_out == 300);  // how often which is the machine's affair
}

TEST_CASE_METHOD(Fixture, "queues", "[net][store_client][queue]") {
  const auto client = this->client(), other = this->client();
  REQUIRE(*client->queue_len("c7/q") == 0);
  REQUIRE_FALSE(client->queue_try_pop("c7/q")->has_value());
  REQUIRE(ok(client->queue_push("c7/q", "1")));
  REQUIRE(ok(client->queue_push("c7/q", "")));
  REQUIRE(*client->queue_len("c7/q") == 2);
  REQUIRE(text(client->queue_pop("c7/q")) == "1");
  REQUIRE((*client->queue_try_pop("c7/q"))->size() == 0);
  std::thread pusher{[&] {
    until_waiting(1);
    (void)other->queue_push("c7/q", "late");
  }};
  REQUIRE(text(client->queue_pop("c7/q")) == "late");
  pusher.join();
  client->set_timeout(30ms);
  REQUIRE(client->queue_pop("c7/q").error().context == "wait timeout after 30ms, keys: /c7/q");
}

TEST_CASE_METHOD(Fixture, "barriers", "[net][store_client][barrier]") {
  std::vector<std::thread> others;
  std::atomic<int> passed = 0;
  for (int i = 0; i < 3; ++i)
    others.emplace_back([&, one = std::shared_ptr<StoreClient>{client()}] {
      if (one->barrier("c8/b", 4)) ++passed;
    });
  const auto last = client();
  until_waiting(3);
  REQUIRE(passed == 0);
  REQUIRE(ok(last->barrier("c8/b", 4)));
  for (auto& other : others) other.join();
  REQUIRE(passed == 3);
  REQUIRE(last->barrier("c8/lonely", 2, 30ms).error().context == "barrier timeout after 30ms, key: c8/lonely");
  REQUIRE(*last->add("c8/n", 1) == 1);
}

TEST_CASE_METHOD(Fixture, "all keys are listed but the worker count", "[net][store_client][list_keys]") {
  const auto client = this->client();
  const auto workers = *client->count_worker();
  REQUIRE(*client->count_worker() == workers + 1);
  for (int i = 0; i < 1000; ++i) REQUIRE(ok(client->set("c9/" + std::to_string(i), "v")));
  const auto keys = client->list_keys();
  REQUIRE(keys.has_value());
  REQUIRE(std::count_if(keys->begin(), keys->end(), [](const std::string& key) { return key.starts_with("c9/"); }) ==
          1000);
  REQUIRE(std::count(keys->begin(), keys->end(), "init/") == 0);
}

TEST_CASE_METHOD(Fixture, "threads share a client by turns, a clone has its own connection", "[net][store_client]") {
  const auto client = this->client();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 200; ++n) (void)client->add("c10/n", 1);
    });
  for (auto& thread : threads) thread.join();
  REQUIRE(*client->add("c10/n", 0) == 800);

  client->set_timeout(1ms);  // for keys, not for connecting
  auto clone = client->clone();
  REQUIRE(clone.has_value());
  REQUIRE((*clone)->timeout() == 1ms);
  client->set_timeout(10s);
  std::thread waiter{[&] { (void)client->get("c10/k"); }};
  until_waiting(1);
  REQUIRE(ok((*clone)->set("c10/k", "from the clone")));
  waiter.join();
}

TEST_CASE_METHOD(Fixture, "what the server refuses is an error, not silence", "[net][store_client]") {
  const auto client = this->client();
  REQUIRE(ok(client->set("c11/t", "text")));
  REQUIRE(client->add("c11/t", 1).has_error());
}
