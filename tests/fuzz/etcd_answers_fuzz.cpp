// What a service at etcd's address answers, and what others may have put there: every reader says yes or no, and what
// it took of a head, a holder or a state is written as it was read.
#include "rendezvous/core/etcd/etcd_failure.hpp"
#include "rendezvous/core/etcd/etcd_messages.hpp"
#include "rendezvous/core/etcd/scope.hpp"
#include "rendezvous/core/etcd/state_pieces.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;
using namespace torchup::etcd;

namespace {

void read_states_of(std::string_view body) {
  const Scope scope = Scope::of_job("/torchup", RunId{"job"});
  Txn taking;
  taking.then.emplace_back(range_of_prefix(scope.states()));
  const auto answer = read_txn(body, taking);
  if (!answer) return;
  fuzz::require(answer->header.revision > Revision{0});
  const auto& range = std::get<RangeAnswer>(answer->answers.front());
  for (const Entry& entry : range.entries) fuzz::require(entry.key.starts_with(scope.states()));
  const auto states = read_states(scope, range.entries);
  if (!states) return;
  for (const ReadState& state : *states) fuzz::require(state.bytes.size() == state.head.bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body{reinterpret_cast<const char*>(data), size};
  read_states_of(body);
  static_cast<void>(read_range(body, {.key = "/torchup/job/job/seat"}));
  static_cast<void>(read_grant(body));
  static_cast<void>(read_keep_alive(body, LeaseId{7}));
  static_cast<void>(read_status(body));
  static_cast<void>(read_watch(body, "/torchup/job/job/seat"));
  static_cast<void>(read_login(body));
  fuzz::require(failure_of(400, body, false).words.size() < 4096);
  if (const auto head = read_head(body)) fuzz::require(*read_head(encode_head(*head)) == *head);
  if (const auto holder = read_holder(body)) fuzz::require(*read_holder(encode_holder(*holder)) == *holder);
  return 0;
}
