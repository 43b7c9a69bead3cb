#include "worker_runtime/store/job_store.hpp"

#include <c10/util/Exception.h>

#include <mutex>

#include "worker_runtime/store/client_store.hpp"

namespace torchup {

namespace {

std::mutex mutex;
c10::intrusive_ptr<c10d::Store> job_store;  // guarded by mutex, as the next ones
c10::intrusive_ptr<c10d::Store> watching_store;
std::string round_name;

// torch 2.9 has no clone() for its own stores: there the connection is shared.
template <class Store>
c10::intrusive_ptr<c10d::Store> connection_to(const c10::intrusive_ptr<Store>& store) {
  if (auto* const client = dynamic_cast<ClientStore*>(store.get())) return client->clone();
  if constexpr (requires { store->clone(); }) {
    return store->clone();
  } else {
    return store;
  }
}

}  // namespace

void set_job_store(c10::intrusive_ptr<c10d::Store> store, std::string round) {
  auto watching = store ? connection_to(store) : nullptr;
  const std::lock_guard lock{mutex};
  job_store = std::move(store);
  watching_store = std::move(watching);
  round_name = std::move(round);
}

std::string job_round() {
  const std::lock_guard lock{mutex};
  return round_name;
}

c10::intrusive_ptr<c10d::Store> watching_job_store() {
  const std::lock_guard lock{mutex};
  return watching_store;
}

c10::intrusive_ptr<c10d::Store> connect_job_store() {
  const std::lock_guard lock{mutex};
  return job_store ? connection_to(job_store) : nullptr;
}

void publish(c10d::Store& store, const std::string& key, const std::string& value, const std::string& before) {
  try {
    store.compareSet(key, before, value);
  } catch (const c10::DistError&) {  // the next call makes the connection again, where the store is the same
    store.compareSet(key, before, value);
  }
}

}  // namespace torchup
