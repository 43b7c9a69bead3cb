// Agents of one job, of which some say what they like: Join, Resume, Leave and all other frames, in any order, on
// connections that come and go, while time passes, people order this and that, and the coordinator is started anew with
// and without memory. An order that is refused has changed nothing.
//
// The machine never crashes; what it tells goes to open connections and fits its own frames; it never asks for a tick
// in the past; and its snapshot is one that job_codec reads back. Beside it the watch over the job's workers sees every
// step, with reports, answers and questions of the same strangers; of it the same holds, and its news can be read.
//
// Input: one byte says what happens, the next to whom; a frame of an agent follows whole, or a short order of ours that
// makes a proper one.
#include <map>
#include <optional>
#include <string>

#include "rendezvous/core/diagnosis/look_parts.hpp"
#include "rendezvous/core/link/agent_codec.hpp"
#include "rendezvous/core/membership/job_codec.hpp"
#include "rendezvous/core/round/job_watch.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t peers_max = 6;
/// Orders of that number and above that are none of the round machine's are the watch's.
constexpr std::uint8_t watched_least = 120;
/// Those of that number and above are people's orders.
constexpr std::uint8_t ordered_least = 246;

class Job {
 public:
  explicit Job(std::string_view input) : input_{input} {}

  void run() {
    for (int steps = 0; !input_.empty() && steps < 400; ++steps) turn();
    // Left alone, the machine comes to rest.
    for (int ticks = 0; ticks < 50 && machine_.deadline(); ++ticks) {
      now_ = std::max(now_, *machine_.deadline());
      step(Tick{});
    }
  }

 private:
  std::uint8_t next() {
    if (input_.empty()) return 0;
    const auto byte = static_cast<std::uint8_t>(input_.front());
    input_.remove_prefix(1);
    return byte;
  }

  void turn() {
    const std::uint8_t what = next();
    const std::uint32_t who = next() % peers_max;
    if (what >= ordered_least) return order(who, what);
    switch (what % 12) {
      case 0:
        return pass(std::chrono::milliseconds{1 << (next() % 18)});
      case 1:
        if (machine_.deadline()) now_ = std::max(now_, *machine_.deadline());
        return step(Tick{});
      case 2:
        return gone(who, true);
      case 3:
        return gone(who, false);
      case 4:
        return start_anew(who % 2 == 0);
      case 5:
        return proper_join(who, next());
      case 6:
        return say(who, AgentMessage{StoreReady{machine_.round(), Port{4000}}});
      case 7:
        return say(who, AgentMessage{WorkersSucceeded{machine_.round()}});
      case 8:
        return say(who,
                   AgentMessage{WorkersFailed{machine_.round(), {{.rank = Rank{1}, .host = "h"}}, next() % 4 != 0}});
      case 9:
        return proper_resume(who, next());
      default:
        return what < watched_least ? foreign(who) : proper_answer(who, next());
    }
  }

  void order(std::uint32_t who, std::uint8_t what) {
    const std::uint8_t choice = next();
    const std::string host = "h" + std::to_string(who % 4);
    Order order = order::Restart{};
    if (what % 5 == 1) order = order::Drain{choice % 8 == 0 ? std::to_string(who) : host};
    if (what % 5 == 2) order = order::Undrain{host};
    if (what % 5 == 3) order = order::Resize{choice % 5, choice / 8 % 6};
    if (what % 5 == 4) order = order::Stop{.save = choice % 4 == 1, .now = choice % 8 > 5};
    for (int ticks = 0; ticks < 4; ++ticks) step(Tick{});  // whatever is due is no order's doing
    const bool accepted = machine_.answer(order, now_).accepted;
    const JobSnapshot before = machine_.snapshot(now_);
    step(Ordered{std::move(order), "somebody"});
    fuzz::require(accepted || machine_.snapshot(now_) == before);
  }

  void connect(std::uint32_t who) {
    if (open_.contains(who)) return;
    open_[who] = true;
    step(Connected{Peer{who}, "10.0.0." + std::to_string(who), "10.0.0.254", false});
  }
  void gone(std::uint32_t who, bool end_of_file) {
    if (open_.erase(who) == 0) return;
    readers_.erase(who);
    step(Gone{Peer{who}, end_of_file});
  }
  void pass(Duration time) {
    now_ += time;
    step(Tick{});
  }
  void say(std::uint32_t who, AgentMessage message) {
    connect(who);
    step(Said{Peer{who}, std::move(message)});
  }

  [[nodiscard]] Join join_of(std::uint32_t who, std::uint8_t choice) const {
    Join join;
    join.node = NodeId{"n" + std::to_string(who) + (choice % 4 == 3 ? "b" : "")};
    join.host = "h" + std::to_string(who % 4);
    join.local_world_size = 1 + choice / 4 % 3;
    join.terms.min_nodes = 2;
    join.terms.max_nodes = 3;
    join.terms.max_restarts = 1;
    join.terms.last_call = std::chrono::seconds{choice / 16 % 2};
    if (choice / 64 % 2 == 1) {
      join.terms.rank_order = RankOrder::index;
      join.terms.hostlist = "h[0-4]";
      join.group_rank = GroupRank{static_cast<int>(who % 3)};
    }
    const auto placed = placed_.find(who);
    if (choice / 32 % 2 == 1 && placed != placed_.end()) join.former = placed->second;
    return join;
  }
  void proper_join(std::uint32_t who, std::uint8_t choice) { say(who, AgentMessage{join_of(who, choice)}); }
  void proper_resume(std::uint32_t who, std::uint8_t choice) {
    Resume resume{.join = join_of(who, choice & 64)};
    const auto placed = placed_.find(who);
    if (placed != placed_.end() && choice % 5 != 0) {
      resume.stage = static_cast<Resume::Stage>(choice % 5);
      resume.placement = placed->second;
      resume.join.local_world_size = 1;
      resume.store = StoreReady{placed->second.round, Port{4000}};
      if (choice % 5 == 4) resume.failed = {placed->second.round, {{.rank = Rank{0}, .host = "h"}}, true};
    }
    connect(who);
    step(Resumed{Peer{who}, std::move(resume)});
  }

  /// What a proper agent says of its workers, or when the watch has something to do.
  void proper_answer(std::uint32_t who, std::uint8_t choice) {
    connect(who);
    const Peer peer{who};
    const std::uint64_t number = choice / 8 % 4;
    const auto placed = placed_.find(who);
    const Rank rank = placed == placed_.end() ? Rank{0} : placed->second.first_rank;
    switch (choice % 8) {
      case 0:
        return heed(watch::Asked{peer});
      case 1:
        return heed(watch::Answered{peer, {number, pack_looks(std::vector{look_at(rank, choice)}).front(), true}});
      case 2:
        return heed(watch::Answered{peer, {number, pack_looks(std::vector{look_at(rank, choice)}).front(), false}});
      case 3:
        return heed(watch::Arrived{peer, {encode_window({.number = number, .late_ranks = {{rank, number * 1ms}}})}});
      case 4:
        if (const auto at = watch_.deadline()) now_ = std::max(now_, *at);
        return step(Tick{});
      case 5:
        return heed(watch::OthersDecide{});
      default:
        return heed(
            watch::Progressed{peer, {.watched = choice % 16 != 7, .progressed = true, .silence = number * 70s}});
    }
  }
  static RankLook look_at(Rank rank, std::uint8_t choice) {
    RankLook look{.rank = rank, .seen = true, .state = 'S', .moving = choice >= 128, .groups_known = true};
    look.progressed = choice % 128 >= 120;
    look.groups.push_back({.name = "0", .ranks = RankSet{{Rank{0}, Rank{1}}}, .number = choice / 64});
    look.collectives.push_back({.group = "0", .number = choice / 64, .operation = "gloo:all_reduce"});
    return look;
  }

  /// Whatever frame comes next in the input.
  void foreign(std::uint32_t who) {
    std::string_view rest = input_;
    const auto frame = take_agent_frame(rest);
    if (!frame || !frame->has_value()) {  // this agent's connection is closed
      if (!input_.empty()) input_.remove_prefix(1);
      return gone(who, false);
    }
    input_ = rest;
    connect(who);
    std::visit(
        [&](const auto& said) {
          using T = std::decay_t<decltype(said)>;
          if constexpr (std::is_constructible_v<AgentMessage, T>) {
            AgentMessage message{said};
            if (const auto heard = watch::event_of(Peer{who}, message)) return heed(*heard);
            step(Said{Peer{who}, said});
          } else if constexpr (std::is_same_v<T, Resume>) {
            step(Resumed{Peer{who}, said});
          } else if constexpr (std::is_same_v<T, KeepAlive>) {
            step(Alive{Peer{who}});
            if (said.report) heed(watch::Progressed{Peer{who}, *said.report});
          }
        },
        **frame);
  }

  void start_anew(bool with_memory) {
    const SavedJob saved{RunId{"job"}, machine_.snapshot(now_)};
    const auto read = decode_job(encode_job(saved));
    fuzz::require(read.has_value());
    fuzz::require(*read == saved);
    open_.clear();
    machine_ = with_memory ? Rendezvous{settings_, read->snapshot, now_} : Rendezvous{settings_};
    watch_ = {};
    readers_.clear();
  }

  void step(const RendezvousEvent& event) {
    for (const RendezvousAction& action : machine_.step(event, now_)) {
      if (const auto* refuse = std::get_if<Refuse>(&action)) fuzz::require(open_.contains(refuse->peer.value()));
      const auto* tell = std::get_if<Tell>(&action);
      if (!tell) continue;
      fuzz::require(open_.contains(tell->peer.value()));
      std::visit(
          [&](const auto& message) {
            const std::string bytes = encode(CoordinatorFrame{message});
            std::string_view rest = bytes;
            const auto frame = take_coordinator_frame(rest);
            fuzz::require(frame && frame->has_value());
          },
          tell->message);
      if (const auto* placed = std::get_if<Placed>(&tell->message)) placed_[tell->peer.value()] = placed->placement;
    }
    if (const auto at = machine_.deadline()) fuzz::require(*at > now_);
    fuzz::require(machine_.member_count() >= 0);
    (void)machine_.roster(now_);
    (void)machine_.view(now_);
    heed(watch::RoundStepped{});
  }

  void heed(const watch::Event& event) {
    for (const RendezvousAction& action : watch_.step(event, machine_, now_)) {
      fuzz::require(!std::holds_alternative<Refuse>(action));
      if (const auto* note = std::get_if<Note>(&action)) (void)to_text(*note);
      const auto* tell = std::get_if<Tell>(&action);
      if (!tell) continue;
      fuzz::require(open_.contains(tell->peer.value()));
      const auto* told = std::get_if<HangTold>(&tell->message);
      fuzz::require(told || std::holds_alternative<Examine>(tell->message));
      if (!told) continue;
      const auto news = readers_[tell->peer.value()].add(told->part, told->last);
      fuzz::require(news && news->has_value() == told->last);
    }
    if (const auto at = watch_.deadline()) fuzz::require(*at > now_);
    fuzz::require(watch_.held_bytes() <= gathered_bytes_max + arrivals_bytes_max);
  }

  std::string_view input_;
  RendezvousSettings settings_;
  Rendezvous machine_{settings_};
  TimePoint now_{std::chrono::hours{1}};
  std::map<std::uint32_t, bool> open_;
  std::map<std::uint32_t, Placement> placed_;
  JobWatch watch_;
  std::map<std::uint32_t, NewsReader> readers_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Job{{reinterpret_cast<const char*>(data), size}}.run();
  return 0;
}
