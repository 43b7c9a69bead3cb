#include "launcher/os/diagnosis/local_look.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string_view>
#include <utility>

#include "launcher/core/record/cause_words.hpp"
#include "launcher/os/io/shared_page.hpp"
#include "launcher/os/output/evidence.hpp"
#include "rendezvous/core/diagnosis/hang_watch.hpp"
#include "rendezvous/core/text/names.hpp"

namespace torchup {
namespace {

TimePoint now() { return std::chrono::steady_clock::now(); }

/// PyTorch's recorder goes by the clock of the day.
Duration day_ahead() { return std::chrono::system_clock::now().time_since_epoch() - now().time_since_epoch(); }

/// The result is still to be packed and sent.
constexpr Duration look_end = look_answer_limit - std::chrono::milliseconds{150};
constexpr Duration asked_look_end = asked_look_wait_max - std::chrono::milliseconds{500};
/// How often sheets are looked at while some are written.
constexpr Duration sheet_turn = std::chrono::milliseconds{2};

/// Stopped, or no more there: it answers nothing, and questions wait for it until it goes on.
bool stands_still(char state) { return std::string_view{"TtZX?"}.find(state) != std::string_view::npos; }

/// Whether the exception that its error file tells of came from another rank's end.
bool raised_for_others(const std::string& error_file) {
  const auto error = error_file.empty() ? std::nullopt : read_last_words(error_file).error;
  if (!error) return false;
  const CauseKind kind = cause_kind(last_words(reported_lines(error->traceback)));
  return kind == CauseKind::consequence || cause_kind(error->message) == CauseKind::consequence;
}

/// What a crash has left on the sheet, and is to be found there when its process has ended: a core file may still be
/// written.
std::optional<PythonStack> crash_on_sheet(int memory) {
  if (sheet_end(memory) == 0) return std::nullopt;
  PythonStack stack = parse_python_stack(read_sheet(memory));
  return stack.fault.empty() ? std::nullopt : std::optional{std::move(stack)};
}

/// The main thread's.
std::vector<std::string> told_native(const NativeThread& thread) {
  if (thread.frames.empty()) return {std::string{cut_text(thread.problem, look_native_bytes_max)}};
  const auto count = static_cast<std::ptrdiff_t>(std::min(thread.frames.size(), look_native_frames_max));
  return {thread.frames.begin(), thread.frames.begin() + count};
}

}  // namespace

LocalLook::LocalLook(LookOrder order, Means means)
    : number_{order.number}, asked_{order.asked}, native_{order.native}, means_{std::move(means)}, begun_{now()} {
  for (LookedAt& worker : order.workers) {
    Subject& subject = subjects_.emplace_back();
    subject.process = worker.pid;
    subject.worker = std::move(worker);
  }
}

std::optional<LookTaken> LocalLook::take() {
  const TimePoint end = begun_ + (asked_ ? asked_look_end : look_end);
  see_all();
  if (asked_) start_helper();
  ask_for_stacks();
  collect(end);
  if (!asked_) {
    start_helper();
    see_activity();
    if (!means_.mail.pause(now() + between_looks)) return std::nullopt;
    for (Subject& subject : subjects_) subject.moments.second.emplace();
    see_activity();  // before the questions, whose answers are no work of the program
    see_all();
    ask_for_stacks();
    collect(end);
  }
  if (means_.mail.is_closed()) return std::nullopt;
  LookTaken taken{number_, {}, {}};
  for (const Subject& subject : subjects_) {
    taken.looks.push_back(finished_look(subject));
    const WorkerMoments& moments = subject.moments;
    const bool again = moments.second && moments.second->python;
    const WorkerSeen& seen = again ? *moments.second : moments.first;
    taken.stacks.push_back({subject.worker.rank, seen.python.value_or(PythonStack{}), seen.helper_wrote, {}});
  }
  read_helper(std::max(end, now()), taken);
  return taken;
}

std::optional<ArrivalsTaken> LocalLook::take_arrivals() {
  in_passing_ = true;
  for (Subject& subject : subjects_) {
    if (subject.worker.page) subject.now().hook = read_hook(subject.worker.page.get());
    ask_for_answer(subject);
  }
  collect(begun_ + answer_limit);
  if (means_.mail.is_closed()) return std::nullopt;
  ArrivalsTaken taken{number_, {}, {}};
  std::vector<Rank> own;
  for (const Subject& subject : subjects_) own.push_back(subject.worker.rank);
  std::set<std::string> shared;
  for (Subject& subject : subjects_) {
    auto& answer = subject.moments.first.answer;
    if (!answer) continue;
    for (const AnsweredGroup& group : answer->groups) {
      if (has_others(group.position, own)) shared.insert(group.position.name);
    }
    taken.ranks.push_back(arrivals_of(subject.worker.rank, std::move(*answer), day_ahead()));
  }
  taken.shared_groups.assign(shared.begin(), shared.end());
  return taken;
}

void LocalLook::see_all() {
  const TimePoint targets_until = now() + kernel_targets_limit;
  for (Subject& subject : subjects_) see(subject, targets_until);
}

void LocalLook::see(Subject& subject, TimePoint targets_until) {
  WorkerSeen& seen = subject.now();
  const LookedAt& worker = subject.worker;
  if (worker.page) {
    seen.hook = read_hook(worker.page.get());
    seen.progress = read_progress(worker.page.get(), worker.pid);
  }
  // A shell may stand between us and the program. Who is not of the worker's session is none of its.
  const auto claimer = seen.hook ? static_cast<pid_t>(seen.hook->process) : worker.pid;
  subject.process = claimer != worker.pid && ::getsid(claimer) == worker.pid ? claimer : worker.pid;
  const KernelDetail detail = now() < targets_until ? KernelDetail::whole : KernelDetail::call;
  seen.kernel = read_kernel_view(subject.process, detail);
  // That is we.
  if (helper_ && seen.kernel.tracer == helper_->pid()) seen.kernel = subject.moments.first.kernel;
}

void LocalLook::see_activity() {
  for (Subject& subject : subjects_) {
    WorkerSeen& seen = subject.now();
    seen.activity = read_activity(subject.process, process_tree(subject.worker.pid));
    seen.activity_at = now();
  }
}

/// At a second moment of those alone that have answered at the first.
void LocalLook::ask_for_stacks() {
  for (Subject& subject : subjects_) {
    WorkerSeen& seen = subject.now();
    subject.stack = Subject::Stack::none;
    if (!seen.hook || stands_still(seen.kernel.state)) continue;
    const bool silent = subject.moments.second && subject.is_silent;
    const int memory = subject.worker.page.get();
    if ((seen.python = crash_on_sheet(memory))) continue;
    if (!silent && seen.hook->signal != 0) {
      wipe_sheet(memory);
      const StackAsked asked = ask_for_stack(
          subject.worker.pid, {subject.process, static_cast<pid_t>(seen.hook->helper), seen.hook->signal});
      seen.helper_wrote = asked == StackAsked::helper;
      if (asked != StackAsked::no) subject.stack = Subject::Stack::waits;
    }
    subject.sheet_end = 0;
    if (subject.stack == Subject::Stack::none && !silent) ask_for_answer(subject);
  }
}

/// A helper that waits for a CPU has not written all: where there are more workers than CPUs, that can take a while.
bool LocalLook::writes_on(Subject& subject) {
  const WorkerSeen& seen = subject.now();
  return seen.helper_wrote && thread_state(subject.process, static_cast<pid_t>(seen.hook->helper)) == 'R';
}

void LocalLook::look_at_sheets(TimePoint until) {
  using Stack = Subject::Stack;
  for (Subject& subject : subjects_) {
    if (subject.stack == Stack::none) continue;
    const int memory = subject.worker.page.get();
    const TimePoint time = now();
    if (const std::int64_t end = sheet_end(memory); end != subject.sheet_end) {
      subject.sheet_end = end;
      subject.grown = time;
      subject.stack = Stack::grows;
    }
    const bool rests = subject.stack == Stack::grows && time - subject.grown >= stack_rest;
    if ((!rests || writes_on(subject)) && time < until) continue;
    subject.is_silent = subject.stack != Stack::grows;
    if (subject.stack == Stack::grows) subject.now().python = parse_python_stack(read_sheet(memory));
    // A helper that has not even handled a signal answers nothing else either.
    if (subject.stack == Stack::grows) ask_for_answer(subject);
    subject.stack = Stack::none;
  }
}

void LocalLook::ask_for_answer(Subject& subject) {
  const WorkerSeen& seen = subject.now();
  const bool silent = subject.moments.second && !subject.moments.first.answer;
  if (silent || !seen.hook || seen.hook->helper == 0 || !subject.worker.ask) return;
  const auto number = means_.mail.expect(subject.worker.local_rank, subject.worker.pid);
  if (!number) return;
  subject.answer_until = now() + answer_limit;
  means_.post([ask = subject.worker.ask, question = LookWanted{*number, in_passing_}] { ask(question); });
}

void LocalLook::collect(TimePoint until) {
  const TimePoint sheets_until = std::min(until, now() + stack_limit);
  while (!means_.mail.is_closed()) {
    look_at_sheets(sheets_until);
    const auto wake = next_wake();
    if (!wake || now() >= until) break;
    receive(means_.mail.take(std::min(*wake, until)));
  }
  means_.mail.forget();
  for (Subject& subject : subjects_) subject.answer_until.reset();
}

/// Nothing: all is there.
std::optional<TimePoint> LocalLook::next_wake() const {
  std::optional<TimePoint> wake;
  const TimePoint time = now();
  for (const Subject& subject : subjects_) {
    if (subject.stack != Subject::Stack::none) return time + sheet_turn;
    const auto& answer = subject.answer_until;
    if (answer && *answer > time) wake = wake ? std::min(*wake, *answer) : *answer;
  }
  return wake;
}

void LocalLook::receive(const std::vector<LookMail::Answer>& answers) {
  for (const LookMail::Answer& arrived : answers) {
    const auto subject =
        std::ranges::find(subjects_, arrived.local_rank, [](const Subject& each) { return each.worker.local_rank; });
    if (subject == subjects_.end() || !subject->answer_until) continue;
    subject->answer_until.reset();
    auto answer = parse_worker_answer(read_answer(subject->worker.page.get(), arrived.length));
    if (answer) subject->now().answer = *std::move(answer);
  }
}

/// Of a person's look, which is to be fast, programs that are not Python, unless he wants all.
void LocalLook::start_helper() {
  std::vector<StackTarget> targets;
  for (const Subject& subject : subjects_) {
    const WorkerSeen& seen = subject.moments.first;
    if (targets.size() == native_threads_max) break;
    if (asked_ ? native_ || !seen.hook || seen.hook->python == 0 : hides_native_code(seen))
      targets.push_back({subject.process, subject.process});
  }
  if (!targets.empty()) helper_.emplace(means_.stack_program, std::move(targets));
}

RankLook LocalLook::finished_look(const Subject& subject) const {
  RankLook look = look_of(subject.moments, own_processor());
  look.rank = subject.worker.rank;
  look.local_rank = subject.worker.local_rank;
  look.pid = subject.worker.pid;
  look.raised_consequence = look.raised_ns && raised_for_others(subject.worker.error_file);
  return look;
}

void LocalLook::read_helper(TimePoint until, LookTaken& taken) {
  if (!helper_) return;
  const auto threads = helper_->read(std::min(until, begun_ + native_limit), means_.mail.closing());
  for (std::size_t i = 0; i < subjects_.size(); ++i) {
    for (const NativeThread& thread : threads) {
      if (thread.process != subjects_[i].process) continue;
      if (thread.thread == thread.process) taken.looks[i].native = told_native(thread);
      taken.stacks[i].native.push_back(thread);
    }
  }
}

}  // namespace torchup
