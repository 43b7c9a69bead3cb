#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "launcher/core/agent/agent.hpp"
#include "launcher/core/diagnosis/hang_page.hpp"
#include "rendezvous/core/diagnosis/look_parts.hpp"

/// Workers that make no progress. The coordinator decides what is the matter, by what all agents have told of theirs;
/// an agent tells how far its workers are, has them looked at when it is asked, and does what was decided. In a job
/// with torchrun's agents nobody decides for all: there each agent judges its own node, and touches nobody.
namespace torchup {
namespace {

double whole_milliseconds(Duration duration) {
  return std::chrono::duration<double>(std::chrono::floor<std::chrono::milliseconds>(duration)).count();
}

/// What is told of a save that takes long.
Duration long_save(const HangTimeout& timeout) {
  switch (timeout.mode) {
    case HangTimeout::Mode::automatic:
      return hang_start_limit;
    case HangTimeout::Mode::off:
      return Duration{0};
    case HangTimeout::Mode::given:
      return timeout.silence;
  }
  return Duration{0};
}

}  // namespace

Duration Agent::step_interval() const {
  const HangTimeout& timeout = config_.terms.hang_timeout;
  if (config_.rehearsal.script) return look_interval_min;  // it is told when a job goes on
  if (timeout.mode != HangTimeout::Mode::given) return look_interval(Duration{0});
  return look_interval(std::min(timeout.silence, timeout.start.value_or(timeout.silence)));
}

/// The workers of a round are about to start.
void Agent::begin_diagnosis(bool watched) {
  NewsReader news = std::move(diagnosis_.news);
  diagnosis_ = {};
  diagnosis_.news = std::move(news);
  diagnosis_.progress.emplace(step_interval(), now_);
  diagnosis_.saves = SaveWatch{long_save(config_.terms.hang_timeout)};
  if (watched) return;
  const JobTerms& terms = config_.terms;
  diagnosis_.own_watch.emplace(HangSettings{terms.hang_timeout, terms.on_hang, false});
  hang::AttemptBegins begins;
  begins.nodes.push_back({identity_.node, identity_.host, placement_->first_rank, config_.local_world_size});
  begins.world_size = placement_->world_size;
  take(diagnosis_.own_watch->step(begins, now_));
}

/// Also of those that have ended well: the others may wait for them, and the coordinator counts the time.
bool Agent::round_goes_on() const {
  if (phase_ == Phase::running) return true;
  return (phase_ == Phase::sweeping || phase_ == Phase::idle) && attempt_reason_.empty() && !leaving_ && !verdict_;
}

/// What was told of this round counts no more, least of all in the next.
void Agent::forget_progress() {
  if (!diagnosis_.progress) return;
  diagnosis_.progress.reset();
  diagnosis_.own_watch.reset();
  diagnosis_.stacks.clear();
  act(ReportProgress{});
}

/// Of steps, for the record.
void Agent::tell_progress(bool ends) {
  if (end_told_) return;
  if (auto progress = step_tally_.tell(now_, ends)) record(*std::move(progress));
}

void Agent::on(const StepsSeen& event) {
  for (const StepSample& sample : event.samples) {
    if (sample.progress) step_tally_.look(sample.local_rank, *sample.progress);
  }
  tell_progress(false);
  const auto has_step = [](const StepSample& sample) { return sample.progress.has_value(); };
  diagnosis_.any_step = diagnosis_.any_step || std::ranges::any_of(event.samples, has_step);
  if (!diagnosis_.progress) return;
  if (!round_goes_on()) return forget_progress();
  if (auto warning = diagnosis_.saves.look(event.samples, now_)) record(event::Warning{*std::move(warning)});
  std::vector<WorkerSigns> signs;
  for (const StepSample& sample : event.samples) signs.push_back(sample.signs);
  rehearse_progress(event.samples);
  const bool standing = paused_ || !drained_by_.empty() || is_saving(event.samples) || any_stopped_by_rehearsal();
  diagnosis_.progress->look(signs, standing, now_);
  const ProgressReport& report = diagnosis_.progress->report();
  act(ReportProgress{report});
  if (diagnosis_.own_watch) take(diagnosis_.own_watch->step(hang::Reported{identity_.node, report}, now_));
}

// Looks.

void Agent::obey(const Examine& message) { take_looks(message.number, message.asked, message.arrivals_only); }

void Agent::take_looks(std::uint64_t number, bool asked, bool arrivals_only) {
  std::vector<LocalRank> workers = in_state(WorkerState::running);
  if (phase_ == Phase::running && !workers.empty()) {
    act(TakeLooks{number, std::move(workers), asked, arrivals_only});
  } else if (arrivals_only) {
    ArrivalsSeen none;
    none.number = number;
    on(none);
  } else {
    LooksTaken none;
    none.number = number;
    on(none);
  }
}

void Agent::on(const LooksTaken& event) {
  std::vector<RankLook> looks = event.looks;
  // Nobody can look at who has ended, and who ended well is known to be there no more.
  for (const LocalRank local_rank : in_state(WorkerState::succeeded)) {
    const WorkerId id = id_of(local_rank);
    if (std::ranges::find(looks, id.rank, &RankLook::rank) != looks.end()) continue;
    RankLook look;
    look.rank = id.rank;
    look.local_rank = local_rank;
    look.host = identity_.host;
    look.pid = id.pid;
    look.seen = true;
    look.state = state_dead;
    looks.push_back(std::move(look));
  }
  std::ranges::sort(looks, {}, &RankLook::rank);
  diagnosis_.stacks = event.stacks;
  diagnosis_.stacks_end = now_ + stacks_kept;
  std::vector<std::string> parts = pack_looks(looks);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size();
    if (diagnosis_.own_watch) {
      take(diagnosis_.own_watch->step(hang::Answered{identity_.node, event.number, parts[i], last}, now_));
    } else {
      act(Send{Examined{event.number, std::move(parts[i]), last}});
    }
  }
}

void Agent::on(const ArrivalsSeen& event) {
  if (!event.clock) return;
  const LatenessWindow window = diagnosis_.lateness.window(event.ranks);
  act(Send{Arrivals{encode_window(told_window(event.number, window, *event.clock, event.shared_groups))}});
}

// What was found.

void Agent::obey(const HangTold& message) {
  auto news = diagnosis_.news.add(message.part, message.last);
  if (!news) {
    record(event::Notice{"news of a hang cannot be read: " + news.error().message(), LogLevel::warning});
  } else if (*news) {
    std::visit([this](const auto& one) { learn(one); }, **news);
  }
}

void Agent::take(const std::vector<hang::Action>& wanted) {
  for (const hang::Action& action : wanted) {
    std::visit([this](const auto& one) { take_wanted(one); }, action);
  }
}
void Agent::take_wanted(const hang::Examine& examine) { take_looks(examine.number, examine.asked, false); }
void Agent::take_wanted(const hang::Found& found) { learn(found); }
void Agent::take_wanted(const hang::Over& over) { learn(over); }
void Agent::take_wanted(const hang::Void& ended) {
  record(event::Notice{fmt::format("look {} at the workers led to nothing: {}", ended.number, ended.reason),
                       LogLevel::debug});
}

void Agent::learn(const hang::Found& found) {
  if (!placement_ || phase_ == Phase::joining || phase_ == Phase::pausing) return;  // it is of a round that is over
  HangReport report;
  // A coordinator that has begun anew counts from 0 again, and this node has files of those numbers.
  report.number = std::max(found.number, hangs_told_);
  hangs_told_ = report.number + 1;
  report.asked = found.asked;
  report.verdict = found.verdict;
  report.silence = found.silence;
  report.action = found.action;
  report.spared = found.spared;
  report.on_hang = config_.terms.on_hang;
  report.looks = found.looks;
  const HangWords words = hang_words(report);
  const std::string summary = hang_summary(report);
  const std::uint64_t number = report.number;
  TellHang tell;
  tell.report = std::move(report);
  // The first node shows all of it, and who has asked.
  const bool shows_all = placement_->group_rank == GroupRank{0} || diagnosis_.own_watch || diagnosis_.quit_ends;
  if (!shows_all) {
    std::vector<Rank> own;
    for (int i = 0; i < config_.local_world_size; ++i) own.push_back(id_of(LocalRank{i}).rank);
    tell.own = RankSet{std::move(own)};
  }
  tell.stacks = std::move(diagnosis_.stacks);
  diagnosis_.stacks.clear();
  act(std::move(tell));
  if (found.asked) {
    diagnosis_.shown = true;
    if (diagnosis_.quit_ends) quit();
    return;
  }
  rehearse(rehearsal::TroubleSeen{});
  diagnosis_.hang = ToldHang{number, found.silence, now_};
  if (phase_ == Phase::running) end_hung(found, words, summary);
  if (!diagnosis_.quit_ends) return;
  diagnosis_.shown = true;  // who asked meanwhile has seen it
  quit();
}

/// The one place where workers are ended for a hang.
void Agent::end_hung(const hang::Found& found, const HangWords& words, const std::string& summary) {
  if (!found.verdict) return;
  if (found.verdict->kind != HangKind::busy && found.verdict->kind != HangKind::debugged) {
    for (const LocalRank local_rank : own_of(found.verdict->culprits)) {
      record(event::WorkerHung{id_of(local_rank), words.ours, words.said});
    }
  }
  if (found.action == HangAction::none) return;
  diagnosis_.action = found.action;
  std::vector<LocalRank> ended = own_of(found.ended);
  std::erase_if(ended, [this](LocalRank each) { return worker_at(each).state != WorkerState::running; });
  if (ended.empty()) return;
  for (const LocalRank local_rank : ended) worker_at(local_rank).abort_reason = summary;
  act(AbortWorkers{std::move(ended)});
  abort_ends_ = now_ + abort_patience;
}

void Agent::learn(const hang::Over& over) {
  const auto hang = std::exchange(diagnosis_.hang, std::nullopt);
  if (hang) record(event::HangOver{hang->number, whole_milliseconds(over.after)});
}

/// A job that gets on may be done before anybody has told of its progress.
void Agent::end_well() {
  if (!diagnosis_.hang) return;
  learn(hang::Over{diagnosis_.hang->number, diagnosis_.hang->silence + (now_ - diagnosis_.hang->at)});
}

void Agent::learn(const StragglerFound& found) {
  rehearse(rehearsal::TroubleSeen{});
  record(event::StragglerFound{found, is_told_here(found.rank, found.host)});
}
void Agent::learn(const StragglerOver& over) { record(event::StragglerOver{over, is_told_here(over.rank, over.host)}); }

/// Of a job of many nodes one tells people of all, and each of its own.
bool Agent::is_told_here(const std::optional<Rank>& rank, const std::string& host) const {
  if (!placement_ || placement_->group_rank == GroupRank{0}) return true;
  return rank ? !own_of({*rank}).empty() : host == identity_.host;
}

std::vector<LocalRank> Agent::own_of(const std::vector<Rank>& ranks) const {
  std::vector<LocalRank> own;
  const int first = placement_->first_rank.value();
  for (const Rank rank : ranks) {
    const int local = rank.value() - first;
    if (local >= 0 && local < config_.local_world_size) own.emplace_back(local);
  }
  return own;
}

// SIGQUIT.

/// Has somebody who wants to see the ranks wait for their page; false: there is nobody to be seen.
bool Agent::ask_look() {
  if (phase_ != Phase::running || in_state(WorkerState::running).empty() || leaving_ || verdict_) return false;
  diagnosis_.quit_ends = now_ + quit_patience;
  if (diagnosis_.own_watch) {
    take(diagnosis_.own_watch->step(hang::Asked{}, now_));
  } else {
    act(Send{AskLook{}});
  }
  return true;
}

/// The page was shown, or does not come.
void Agent::quit() {
  diagnosis_.quit_ends.reset();
  end_at_once(SIGQUIT);
}

std::optional<TimePoint> Agent::diagnosis_deadline() const {
  std::optional<TimePoint> first = diagnosis_.quit_ends;
  const auto also = [&first](const std::optional<TimePoint>& time) {
    if (time) first = first ? std::min(*first, *time) : *time;
  };
  also(diagnosis_.stacks_end);
  if (diagnosis_.own_watch) also(diagnosis_.own_watch->deadline());
  return first;
}

void Agent::diagnosis_due() {
  if (diagnosis_.stacks_end && now_ >= *diagnosis_.stacks_end) {
    diagnosis_.stacks_end.reset();
    diagnosis_.stacks.clear();
    diagnosis_.stacks.shrink_to_fit();
  }
  if (diagnosis_.own_watch) take(diagnosis_.own_watch->step(hang::Wake{}, now_));
  if (!diagnosis_.quit_ends) return;
  const bool round_is_over = phase_ != Phase::running;  // nobody looks at its ranks any more
  if (round_is_over && (leaving_ || verdict_)) {
    diagnosis_.quit_ends.reset();  // the job ends already, and nobody has asked for that to be hastened
  } else if (round_is_over || now_ >= *diagnosis_.quit_ends) {
    quit();
  }
}

}  // namespace torchup
