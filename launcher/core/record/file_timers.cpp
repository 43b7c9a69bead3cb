#include "launcher/core/record/file_timers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "launcher/core/text/json.hpp"

namespace torchup {
namespace {

constexpr int signals_max = 64;

}  // namespace

Result<TimerRequest> parse_timer_request(std::string_view line) {
  if (line.size() > timer_line_bytes_max) return fail(errc::limit_exceeded, "a timer's line is too long");
  const auto parsed = parse_json(line);
  if (!parsed) return fail(errc::bad_value, "a timer's line: " + parsed.error().context);
  const json& request = *parsed;
  if (!request.is_object()) return fail(errc::bad_value, "a timer's line is no JSON object");
  const json* version = member(request, "version");
  const json* pid = member(request, "pid");
  const json* scope = member(request, "scope_id");
  const json* expires = member(request, "expiration_time");
  const json* signal = member(request, "signal");
  if (!version || *version != 1) return fail(errc::bad_value, "a timer's line has another version than 1");
  if (!pid || !pid->is_number_integer() || !scope || !scope->is_string() || !expires || !expires->is_number() ||
      !signal || !signal->is_number_integer()) {
    return fail(errc::bad_value, "a timer's line lacks pid, scope_id, expiration_time or signal");
  }
  TimerRequest read;
  read.pid = pid->get<std::int64_t>();
  read.scope = scope->get<std::string>();
  read.expires_s = expires->get<double>();
  const auto number = signal->get<std::int64_t>();
  // Nothing but a process of its own: 0, -1 and other negative numbers mean groups, or everybody.
  if (read.pid <= 1) return fail(errc::bad_value, "a timer's pid is none");
  if (number > signals_max) return fail(errc::bad_value, "a timer's signal is none");
  read.signal = static_cast<int>(std::max<std::int64_t>(number, 0));
  return read;
}

Result<> FileTimers::apply(const TimerRequest& request) {
  std::pair key{request.pid, request.scope};
  if (request.expires_s < 0) {
    timers_.erase(key);
    return {};
  }
  if (timers_.size() >= timers_max && !timers_.contains(key)) {
    return fail(errc::limit_exceeded, fmt::format("more than {} timers", timers_max));
  }
  timers_.insert_or_assign(std::move(key), Timer{request.expires_s, request.signal});
  return {};
}

std::vector<FileTimers::Expired> FileTimers::due(double now_s) {
  std::vector<Expired> all;
  for (auto timer = timers_.begin(); timer != timers_.end();) {
    const std::int64_t pid = timer->first.first;
    // The keys are sorted by pid: one process after the other.
    const auto next = std::find_if(timer, timers_.end(), [pid](const auto& entry) { return entry.first.first != pid; });
    std::optional<Expired> first;
    bool any = false;
    for (auto it = timer; it != next; ++it) {
      if (it->second.expires_s > now_s) continue;
      any = true;
      const double late_s = now_s - it->second.expires_s;
      if (it->second.signal > 0 && (!first || late_s > first->late_s)) {
        first = Expired{pid, it->first.second, it->second.signal, late_s};
      }
    }
    if (any) {
      all.push_back(first.value_or(Expired{pid, "", 0, 0}));
      timers_.erase(timer, next);
    }
    timer = next;
  }
  return all;
}

void FileTimers::forget(std::int64_t pid) {
  std::erase_if(timers_, [pid](const auto& entry) { return entry.first.first == pid; });
}

std::optional<double> FileTimers::next_s() const {
  const auto first = std::min_element(timers_.begin(), timers_.end(), [](const auto& a, const auto& b) {
    return a.second.expires_s < b.second.expires_s;
  });
  return first == timers_.end() ? std::nullopt : std::optional{first->second.expires_s};
}

}  // namespace torchup
