#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace torchup {

class StoreClient;

/// LibTorch's Store over our own TCPStore client: process groups meet on it, on our server or on PyTorch's.
///
/// Unlike c10d::TCPStore it has a time-out on every answer, takes one round trip for a get from our server, looks up no
/// peer's name, and never hosts. Errors are c10's, with PyTorch's words: DistStoreError for a wait's time-out and an
/// empty queue, DistNetworkError for the rest.
class ClientStore : public c10d::Store {
 public:
  /// Connects; `timeout` as for c10d::TCPStore.
  ClientStore(const std::string& host, std::uint16_t port, std::chrono::milliseconds timeout = kDefaultTimeout);
  ~ClientStore() override;

  /// Counts this process as a worker that has come, which a hosting Python rank waits for.
  std::int64_t count_worker();

  using Store::compareSet;
  using Store::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  /// As StoreClient::wait_unless.
  bool wait_unless(const std::string& key, std::chrono::milliseconds pause, int wake,
                   const std::function<bool()>& give_up);
  void setTimeout(const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<std::uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }
  void queuePush(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> queuePop(const std::string& key, bool block) override;
  std::int64_t queueLen(const std::string& key) override;
  // Virtual in newer releases of LibTorch, and not there in older ones: so without the word override.
  c10::intrusive_ptr<Store> clone();
  std::vector<std::string> listKeys();
  void barrier(const std::string& key, std::int64_t world_size, const std::chrono::milliseconds& timeout);

 private:
  explicit ClientStore(std::unique_ptr<StoreClient> client);
  std::unique_ptr<StoreClient> client_;
};

}  // namespace torchup
