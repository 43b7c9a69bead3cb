#include "worker_runtime/store/client_store.hpp"

#include <c10/util/Exception.h>

#include "rendezvous/net/store/store_client.hpp"
#include "worker_runtime/store/cancellation.hpp"

namespace torchup {
namespace {

/// c10d's way to say what went wrong.
[[noreturn]] void raise(const Error& error) {
  if (error.code == boost::system::errc::timed_out || error.code == errc::missing_value ||
      error.code == errc::bad_value)
    C10_THROW_ERROR(DistStoreError, error.context);
  C10_THROW_ERROR(DistNetworkError, error.message());
}

void done(const Result<>& result) {
  if (!result) raise(result.error());
}
template <class T>
T value_of(Result<T> result) {
  if (!result) raise(result.error());
  return std::move(*result);
}

std::string_view text(const std::vector<std::uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::vector<std::uint8_t> bytes(const Value& value) { return {value.view().begin(), value.view().end()}; }

}  // namespace

ClientStore::ClientStore(const std::string& host, std::uint16_t port, std::chrono::milliseconds timeout)
    : Store{timeout}, client_{value_of(StoreClient::connect({host, Port{port}, timeout, store_calls_cancelled()}))} {}
ClientStore::ClientStore(std::unique_ptr<StoreClient> client)
    : Store{std::chrono::duration_cast<std::chrono::milliseconds>(client->timeout())}, client_{std::move(client)} {}
ClientStore::~ClientStore() = default;

c10::intrusive_ptr<c10d::Store> ClientStore::clone() {
  return c10::intrusive_ptr<ClientStore>::unsafe_steal_from_new(new ClientStore{value_of(client_->clone())});
}

std::int64_t ClientStore::count_worker() { return value_of(client_->count_worker()); }

void ClientStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  done(client_->set(key, text(value)));
}

std::vector<std::uint8_t> ClientStore::compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                                  const std::vector<std::uint8_t>& desired) {
  return bytes(value_of(client_->compare_set(key, text(expected), text(desired))));
}

std::vector<std::uint8_t> ClientStore::get(const std::string& key) { return bytes(value_of(client_->get(key))); }
std::int64_t ClientStore::add(const std::string& key, std::int64_t value) { return value_of(client_->add(key, value)); }
bool ClientStore::deleteKey(const std::string& key) { return value_of(client_->delete_key(key)); }
bool ClientStore::check(const std::vector<std::string>& keys) { return value_of(client_->check(keys)); }
std::int64_t ClientStore::getNumKeys() { return value_of(client_->num_keys()); }
void ClientStore::wait(const std::vector<std::string>& keys) { done(client_->wait(keys)); }
void ClientStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  done(client_->wait(keys, timeout));
}

bool ClientStore::wait_unless(const std::string& key, std::chrono::milliseconds pause, int wake,
                              const std::function<bool()>& give_up) {
  return value_of(client_->wait_unless({&key, 1}, pause, wake, give_up));
}

void ClientStore::setTimeout(const std::chrono::milliseconds& timeout) {
  Store::setTimeout(timeout);
  client_->set_timeout(timeout);
}

void ClientStore::append(const std::string& key, const std::vector<std::uint8_t>& value) {
  done(client_->append(key, text(value)));
}

std::vector<std::vector<std::uint8_t>> ClientStore::multiGet(const std::vector<std::string>& keys) {
  std::vector<std::vector<std::uint8_t>> all;
  for (const Value& value : value_of(client_->multi_get(keys))) all.push_back(bytes(value));
  return all;
}

void ClientStore::multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<std::uint8_t>>& values) {
  std::vector<std::string_view> views;
  for (const auto& value : values) views.push_back(text(value));
  done(client_->multi_set(keys, views));
}

void ClientStore::queuePush(const std::string& key, const std::vector<std::uint8_t>& value) {
  done(client_->queue_push(key, text(value)));
}

std::vector<std::uint8_t> ClientStore::queuePop(const std::string& key, bool block) {
  if (block) return bytes(value_of(client_->queue_pop(key)));
  const auto element = value_of(client_->queue_try_pop(key));
  if (!element) C10_THROW_ERROR(DistStoreError, "queue is empty");
  return bytes(*element);
}

std::int64_t ClientStore::queueLen(const std::string& key) { return value_of(client_->queue_len(key)); }
std::vector<std::string> ClientStore::listKeys() { return value_of(client_->list_keys()); }
void ClientStore::barrier(const std::string& key, std::int64_t world_size, const std::chrono::milliseconds& timeout) {
  done(client_->barrier(key, world_size, timeout));
}

}  // namespace torchup
