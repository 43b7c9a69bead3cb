#include "launcher/core/diagnosis/worker_seen.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "rendezvous/core/diagnosis/program_frames.hpp"

namespace torchup {
namespace {

const PythonThread* main_of(const WorkerSeen& seen) {
  return seen.python ? main_thread(*seen.python, seen.helper_wrote) : nullptr;
}

/// `recv` of torch's distributed_c10d.py, in which a program waits for a point-to-point call.
bool is_point_to_point(const PythonThread& main) {
  constexpr std::array<std::string_view, 6> calls{
      "send", "recv", "isend", "irecv", "send_object_list", "recv_object_list"};
  const auto frames = told_frames(main.frames);
  return !frames.empty() && frames[0].file.ends_with("/distributed_c10d.py") &&
         std::ranges::find(calls, frames[0].function) != calls.end();
}

bool waits_in_collective(const WorkerAnswer& answer) {
  return std::ranges::any_of(answer.entries, [](const AnsweredEntry& entry) { return !entry.call.finished; });
}

/// A group that has gone, or come, is one too.
bool groups_differ(const WorkerAnswer& first, const WorkerAnswer& second) {
  const auto is_as_before = [&](const AnsweredGroup& group) {
    const auto before = std::ranges::find(
        first.groups, group.position.name, [](const AnsweredGroup& each) -> auto& { return each.position.name; });
    return before != first.groups.end() && before->position.number == group.position.number &&
           before->sequence == group.sequence;
  };
  return first.groups.size() != second.groups.size() || !std::ranges::all_of(second.groups, is_as_before);
}

/// A call that was under way is done.
bool has_finished_call(const WorkerAnswer& first, const WorkerAnswer& second) {
  using Name = std::tuple<std::string_view, bool, std::int64_t>;
  std::set<Name> under_way;
  for (const auto& [call, _] : first.entries) {
    if (!call.finished) under_way.emplace(call.group, call.point_to_point, call.number);
  }
  return std::ranges::any_of(second.entries, [&](const AnsweredEntry& entry) {
    const Collective& call = entry.call;
    return call.finished && under_way.contains(Name{call.group, call.point_to_point, call.number});
  });
}

/// Or it is another program now, or there at one of the moments alone.
bool has_progressed(const WorkerSeen& first, const WorkerSeen& second) {
  if ((first.kernel.state == state_unknown) != (second.kernel.state == state_unknown)) return true;
  const auto done = [](const WorkerSeen& seen) {
    return seen.progress ? std::pair{seen.progress->beats, seen.progress->step}
                         : std::pair{std::uint64_t{0}, std::int64_t{0}};
  };
  if (done(first) != done(second)) return true;
  const auto& before = first.hook;
  const auto& after = second.hook;
  if (before && after && (before->collectives != after->collectives || before->process != after->process)) return true;
  if (!first.answer || !second.answer) return false;
  return groups_differ(*first.answer, *second.answer) || has_finished_call(*first.answer, *second.answer);
}

bool stack_differs(const WorkerSeen& first, const WorkerSeen& second) {
  const PythonThread* const before = main_of(first);
  const PythonThread* const after = main_of(second);
  return before && after && before->frames != after->frames;
}

/// Both times it was found on a CPU, or waiting for one: on a machine that has far too few it uses next to nothing, and
/// it is not stuck.
bool wants_processor(const WorkerSeen& first, const WorkerSeen& second) {
  return first.kernel.state == 'R' && second.kernel.state == 'R';
}

/// The unfinished ones, the newest first, then what is finished, as a look keeps them too.
void tell_collectives(const WorkerAnswer& answer, RankLook& look) {
  for (const bool finished : {false, true}) {
    for (auto entry = answer.entries.rbegin(); entry != answer.entries.rend(); ++entry) {
      if (look.collectives.size() == look_collectives_max) return;
      if (entry->call.finished == finished) look.collectives.push_back(entry->call);
    }
  }
}

/// Those in which it has a call that is not finished come first.
void tell_groups(const WorkerAnswer& answer, RankLook& look) {
  std::set<std::string_view> waiting;
  for (const AnsweredEntry& entry : answer.entries) {
    if (!entry.call.finished) waiting.insert(entry.call.group);
  }
  look.groups_cut = answer.groups_cut || answer.groups.size() > look_groups_max;
  for (const bool waits : {true, false}) {
    for (const AnsweredGroup& group : answer.groups) {
      if (look.groups.size() == look_groups_max) return;
      if (waiting.contains(group.position.name) == waits) look.groups.push_back(group.position);
    }
  }
}

/// A sleep that was broken off, as by who reads native stacks, and goes on: which one it is, is not said.
bool is_taken_up_again(const KernelView& view, Processor processor) {
  const SystemCallKind* const kind = view.call ? system_call_kind(view.call->number, processor) : nullptr;
  return kind && kind->name == "restart_syscall";
}

/// The second moment, with what it lacks of the first.
WorkerSeen newest_of(const WorkerMoments& moments, Processor processor) {
  const WorkerSeen& first = moments.first;
  if (!moments.second) return first;
  WorkerSeen seen = *moments.second;
  if (is_taken_up_again(seen.kernel, processor) && seen.kernel.state == first.kernel.state) {
    seen.kernel.call = first.kernel.call;
  }
  if (seen.kernel.state == first.kernel.state && seen.kernel.call == first.kernel.call && seen.kernel.target.empty()) {
    seen.kernel.target = first.kernel.target;
  }
  if (seen.kernel.state == state_unknown) seen.kernel = first.kernel;
  if (!seen.progress) seen.progress = first.progress;
  if (!seen.hook) seen.hook = first.hook;
  if (!main_of(seen)) {
    seen.python = first.python;
    seen.helper_wrote = first.helper_wrote;
  }
  if (!seen.answer) seen.answer = first.answer;
  return seen;
}

}  // namespace

std::optional<std::int64_t> raised_for_good(std::int64_t raised_at_ns, const std::optional<WorkerProgress>& progress) {
  const bool goes_on = progress && progress->beats > 0 && progress->ended_ns > raised_at_ns;
  return raised_at_ns == 0 || goes_on ? std::nullopt : std::optional{raised_at_ns};
}

RankLook look_of(const WorkerMoments& moments, Processor processor) {
  const WorkerSeen newest = newest_of(moments, processor);
  RankLook look;
  look.state = newest.kernel.state;
  look.seen = look.state != state_unknown;
  if (!look.seen) return look;
  look.traced = newest.kernel.tracer != 0;
  look.kernel = kernel_text(newest.kernel, processor);
  if (newest.progress) {
    look.step = newest.progress->step;
    look.beats = newest.progress->beats;
  }
  if (newest.hook) look.raised_ns = raised_for_good(newest.hook->raised_at_ns, newest.progress);
  const PythonThread* const main = main_of(newest);
  if (newest.python) look.debugged = is_debugged(*newest.python, main);
  if (main) {
    look.in_p2p = is_point_to_point(*main);
    look.frames = main->frames;
    keep_frames(look.frames, look_frames_max);
  }
  if (newest.answer && newest.answer->problem.empty()) {
    look.groups_known = true;
    tell_groups(*newest.answer, look);
    tell_collectives(*newest.answer, look);
  }
  if (!moments.second) {
    look.moving = look.state == 'R';
    return look;
  }
  const WorkerSeen& first = moments.first;
  const WorkerSeen& second = *moments.second;
  look.progressed = has_progressed(first, second);
  look.moving =
      wants_processor(first, second) ||
      is_moving(first.activity, second.activity, second.activity_at - first.activity_at, stack_differs(first, second));
  return look;
}

bool hides_native_code(const WorkerSeen& seen) {
  if (seen.kernel.tracer != 0 || std::string_view{"?ZX"}.find(seen.kernel.state) != std::string_view::npos)
    return false;
  if (seen.answer && waits_in_collective(*seen.answer)) return false;
  const PythonThread* const main = main_of(seen);
  return !main || main->frames.empty() || seen.kernel.target.empty();
}

bool has_others(const GroupPosition& group, std::span<const Rank> own) {
  return std::ranges::count_if(own, [&](Rank rank) { return group.ranks.contains(rank); }) < group.ranks.size();
}

RankArrivals arrivals_of(Rank rank, WorkerAnswer answer, Duration day_ahead) {
  RankArrivals result{rank, {}};
  result.arrivals.reserve(answer.entries.size());
  const std::int64_t ahead_ns = day_ahead.count();
  for (AnsweredEntry& entry : answer.entries) {
    std::int64_t& time_ns = entry.call.created_ns;
    time_ns = time_ns > ahead_ns ? time_ns - ahead_ns : 0;
    result.arrivals.push_back({std::move(entry.call), entry.duration_ms});
  }
  return result;
}

}  // namespace torchup
