#include "rendezvous/net/coordinator/hosted_meeting.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/net/store/worker_keys.hpp"

namespace torchup {

HostedMeeting::HostedMeeting(const MeetingSurroundings& surroundings, RunId id)
    : around{surroundings}, run_id{std::move(id)},
      care{{.run_id = run_id,
            .common_place = surroundings.options.common_place,
            .room = [this](std::size_t bytes) { return around.room_for_state(*this, bytes); }}},
      state_bytes{surroundings.states_bytes, 0} {}

Result<std::optional<std::string>> HostedMeeting::find(const std::string& key) {
  const Value* value = around.server.store().find("/" + key);
  return value ? std::optional{std::string{value->view()}} : std::nullopt;
}

Result<> HostedMeeting::set(const std::string& key, const std::string& value) {
  const std::string full = "/" + key;
  if (!around.server.store().set(full, Value{value})) return fail(errc::limit_exceeded, "the store is full");
  const auto round_key = read_round_key(full);  // a view of it
  if (round_key) care.place().published_by_ours(round_key->round, round_key->name, value);
  return {};
}

Result<std::int64_t> HostedMeeting::add(const std::string& key, std::int64_t delta) {
  const auto sum = around.server.store().add("/" + key, delta);
  if (!sum) return fail(errc::bad_value, key + " holds no number");
  return *sum;
}

Result<std::string> HostedMeeting::compare_set(const std::string& key, const std::string& expected,
                                               const std::string& desired) {
  const Value* present = around.server.store().find("/" + key);
  if (!present && !expected.empty()) return expected;
  if (present && present->view() != expected) return std::string{present->view()};
  if (auto stored = set(key, desired); !stored) return stored.error();
  care.wrote({}, *this);
  return desired;
}

void HostedMeeting::erase(const std::string& key) { around.server.store().erase("/" + key); }

Result<std::optional<MeetingPlace>> HostedMeeting::common_place() {
  if (!around.options.common_place) return std::optional<MeetingPlace>{};
  care.place().adopt();
  if (!workers) {
    StoreServerOptions options;
    options.bind = around.options.bind;
    options.admits = around.options.admits;
    workers = std::make_unique<StoreServer>(around.loop, std::move(options));
    auto opened = workers->listen();
    if (!opened) {
      workers.reset();
      return opened.error();
    }
    port = *opened;
  }
  return std::optional{MeetingPlace{address.empty() ? "127.0.0.1" : address, port}};
}

bool HostedMeeting::empty(const MeetingPlace& place, std::int64_t round) {
  if (workers && place.port == port) {
    if (std::exchange(emptied_round, round) != round) emptied = 0;
    constexpr std::size_t keys_at_once = 65'536;
    return workers->store().erase_some([](std::string_view) { return true; }, keys_at_once, emptied);
  }
  if (emptying.valid() && !HelperThreads::over(emptying)) return false;  // one at a time, however rounds pass
  if (emptying.valid() && emptied_round == round) return true;
  emptied_round = round;
  emptying = around.helpers.run([place] { delete_worker_keys(place.address, place.port, worker_keys_limit); });
  return false;
}

void HostedMeeting::reached_by(const std::string& own) {
  if (own.empty() || (!address.empty() && !is_loopback(address))) return;
  if (address.empty() || !is_loopback(own)) address = own;
}

bool make_room_for_state(HostedMeetings& meetings, HostedMeeting& its, std::size_t bytes,
                         const std::function<void(const HostedMeeting&)>& left) {
  its.state_bytes.resize(0);
  const auto order = [](const auto& entry) {
    const HostedMeeting& meeting = entry.second;
    const std::size_t held = meeting.state_bytes.count();
    return std::pair{held > 0 && meeting.over_since.has_value(), held};
  };
  while (its.around.states_bytes + bytes > states_bytes_max) {
    const auto first = std::ranges::max_element(meetings, {}, order);
    if (first == meetings.end() || order(*first) <= std::pair{false, bytes}) {
      left(its);
      return false;
    }
    first->second.care.let_go_of_state();
    first->second.state_bytes.resize(0);
    left(first->second);
  }
  its.state_bytes.resize(bytes);
  return true;
}

}  // namespace torchup
