#include "rendezvous/net/coordinator/coordinator_job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/core/link/message_bytes.hpp"
#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/net/coordinator/job_keeper.hpp"

namespace torchup {
namespace {

/// What a job remembers of where its members may come from.
constexpr std::size_t addresses_of_job_max = std::size_t{1} << 17;
constexpr std::size_t address_bytes = 64 + sizeof(AddressBytes);  // of each: its entry in a set, its place in a list

/// Agents are told of it, and tell people in more words: the one in this process to those who read this line.
bool is_told_by_agents(const Note& note) {
  return std::holds_alternative<HangNoted>(note) || std::holds_alternative<HangOver>(note) ||
         std::holds_alternative<StragglerNoted>(note);
}

}  // namespace

CoordinatorJob::CoordinatorJob(boost::asio::io_context& loop, RunId id, Rendezvous machine, LogSink sink)
    : run_id{std::move(id)}, rendezvous{std::move(machine)}, mixed{run_id}, timer{loop}, sink_{std::move(sink)} {}

Peer CoordinatorJob::add(const Coordinator::Visitor& visitor, Coordinator::Listener& listener) {
  if (free_peers_.empty()) {
    free_peers_.push_back(Peer{static_cast<std::uint32_t>(listeners_.size())});
    listeners_.push_back(nullptr);
  }
  const Peer peer = free_peers_.back();
  free_peers_.pop_back();
  listeners_[peer.value()] = &listener;
  ++(visitor.in_process ? own : others);
  return peer;
}

void CoordinatorJob::remove(Peer peer, bool in_process) {
  if (let_go_) return;
  listeners_[peer.value()] = nullptr;
  --(in_process ? own : others);
}

void CoordinatorJob::give_back(Peer peer) { (keeper && keeper->holds() ? gone_peers_ : free_peers_).push_back(peer); }

bool CoordinatorJob::nobody_else() const {
  // Agents of another job, which has begun here after the end of ours, wait for no word of it.
  if (const auto leaving = rendezvous.still_leaving(); leaving && !mixed.active()) return *leaving <= own;
  if (mixed.active()) return others == 0 && mixed.member_count() <= own;
  return others == 0 && rendezvous.member_count() <= own && !rendezvous.awaits_late();
}

void CoordinatorJob::let_go() {
  let_go_ = true;
  if (keeper) std::exchange(keeper, {})->abandon();
  timer.cancel();
  std::ranges::fill(listeners_, nullptr);
  waiters.clear();
}

void CoordinatorJob::let_go_of_all(const std::string& reason) {
  for (auto* listener : listeners_) {
    if (listener) listener->let_go(reason);
  }
}

std::size_t CoordinatorJob::growth_by(const Join& join) const {
  const Membership& members = this->members();
  const auto known = members.slots().find(join.node.value());
  const bool is_new = known == members.slots().end();
  const std::size_t held = is_new ? 0 : torchup::held_bytes(members.at(known->second).join);
  const auto fresh = std::ranges::count_if(join.addresses, [&](const std::string& address) {
    const auto bytes = read_address(address);
    return bytes && !addresses_.contains(*bytes);
  });
  const std::size_t kept = torchup::held_bytes(as_kept(join));
  std::size_t growth = kept - std::min(held, kept);
  if (!mixed.active()) {
    growth += rendezvous.expected_bytes(join);
  } else {  // what plays its part has its join, too; where that waits for the next job, with its host list
    growth += is_new ? torchup::held_bytes(join) : growth;
  }
  return growth + static_cast<std::size_t>(fresh) * address_bytes;
}

std::size_t CoordinatorJob::held_bytes() const {
  const std::size_t people = mixed.active() ? mixed.held_bytes() : rendezvous.held_bytes();
  return people + addresses_.size() * address_bytes;
}

void CoordinatorJob::heard(const Join& join, const std::string& observed, const std::string& reached) {
  joined_ = true;
  if (!reached.empty()) own_address = reached;
  remember(observed);
  for (const std::string& address : join.addresses) remember(address);
}

void CoordinatorJob::restored() {
  joined_ = true;
  const Membership& members = rendezvous.members();
  for (const auto& [node, slot] : members.slots()) heard(members.at(slot).join, members.at(slot).observed, {});
}

void CoordinatorJob::remember(const std::string& address) {
  const auto bytes = read_address(address);
  if (!bytes || addresses_.size() >= addresses_of_job_max) return;
  if (addresses_.insert(*bytes).second) fresh_addresses_.push_back(*bytes);
}

bool CoordinatorJob::knows_address(const std::string& address) const {
  const auto bytes = read_address(address);
  return bytes && addresses_.contains(*bytes);
}

/// A round may begin with each word of an agent's: a hundred thousand addresses are not made a list of for each.
std::vector<std::string> CoordinatorJob::sources() {
  if (!fresh_addresses_.empty()) sources_.widen(std::exchange(fresh_addresses_, {}));
  return sources_.texts();
}

void CoordinatorJob::perform(std::vector<RendezvousAction> actions) {
  if (let_go_) return;
  for (RendezvousAction& action : actions) perform(std::move(action));
  if (keeper && keeper->holds()) return;
  free_peers_.insert(free_peers_.end(), gone_peers_.begin(), gone_peers_.end());
  gone_peers_.clear();
}

void CoordinatorJob::perform(RendezvousAction&& action) {
  if (auto* tell = std::get_if<Tell>(&action)) {
    if (auto* host = std::get_if<HostStore>(&tell->message)) host->sources = sources();
    if (auto* listener = listeners_[tell->peer.value()]) listener->tell(std::move(tell->message));
  } else if (auto* refuse = std::get_if<Refuse>(&action)) {
    if (auto* listener = listeners_[refuse->peer.value()]) listener->refuse(refuse->exit_code, refuse->reason);
  } else if (auto* note = std::get_if<Note>(&action)) {
    log(*note);
    if (onlooker && onlooker->noted) onlooker->noted(run_id, *note);
  }
}

// Those who look at it and steer it.

OrderAnswer CoordinatorJob::answer(const Order& order, TimePoint now) const {
  if (faulty()) return {false, fault_};
  return mixed.active() ? mixed.answer(order) : rendezvous.answer(order, now);
}

void CoordinatorJob::show(Peer peer, Coordinator::NodeWord word) const {
  const auto slot = members().connection(peer).member;
  if (!slot || faulty() || !onlooker || !onlooker->heard) return;
  const NodeId node = members().at(*slot).join->node;
  onlooker->heard(run_id, node, std::move(word));
}

bool CoordinatorJob::tell_node(const NodeId& node, CoordinatorMessage message) {
  const auto known = members().slots().find(node.value());
  const auto peer = known == members().slots().end() ? std::nullopt : members().at(known->second).peer;
  if (!peer || faulty()) return false;
  perform(Tell{*peer, std::move(message)});
  return true;
}

bool CoordinatorJob::is_near(const NodeId& node) const {
  const auto known = members().slots().find(node.value());
  if (known == members().slots().end()) return false;
  const Member& member = members().at(known->second);
  const std::string& observed = member.observed;
  return observed.empty() || is_loopback(observed) || observed == member.reached;
}

// A fault of ours.

void CoordinatorJob::end_by_fault(const std::string& what) {
  stepping = false;
  fault_ = fmt::format("internal fault of the coordinator: {}", what);
  log(LogLevel::error, "fault", fmt::format("the job ends with {}: {}", exit_code::internal, fault_));
  if (keeper) std::exchange(keeper, {})->drop();
  timer.cancel();
  for (auto* listener : listeners_) {
    if (listener) listener->tell(fault_verdict());
  }
}

void CoordinatorJob::refuse_after_fault(const RendezvousEvent& event) const {
  const auto* said = std::get_if<Said>(&event);
  const auto* resumed = std::get_if<Resumed>(&event);
  if (!said && !resumed) return;
  auto* const listener = listeners_[(said ? said->peer : resumed->peer).value()];
  if (listener) listener->tell(fault_verdict());
}

End CoordinatorJob::fault_verdict() const { return End{{.exit_code = exit_code::internal, .reason = fault_}}; }

// What people are told.

void CoordinatorJob::log(LogLevel level, std::string kind, const std::string& text) const {
  LogLine line{level, std::move(kind), text};
  line.job = run_id.value();
  sink_(std::move(line));
}

void CoordinatorJob::log(const Note& note) const {
  const std::string text = to_text(note), kind = fmt::format("note {}", note.index());
  if (!std::holds_alternative<NodesDiffer>(note)) {
    return log(own > 0 && is_told_by_agents(note) ? LogLevel::debug : LogLevel::info, kind, text);
  }
  for (std::size_t begin = 0; begin < text.size();) {  // a table, line by line
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) log(LogLevel::warning, kind, text.substr(begin, end - begin));
    begin = end + 1;
  }
}

}  // namespace torchup
