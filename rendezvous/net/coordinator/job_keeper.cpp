#include "rendezvous/net/coordinator/job_keeper.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/core/membership/job_codec.hpp"
#include "rendezvous/core/text/wording.hpp"
#include "rendezvous/net/coordinator/job_archive.hpp"

namespace torchup {
namespace {

constexpr auto everything = std::numeric_limits<std::uint64_t>::max();

}  // namespace

JobKeeper::JobKeeper(boost::asio::io_context& loop, JobArchive& archive, std::uint64_t number, bool on_disk,
                     RunId run_id, const Rendezvous& rendezvous, LastingClock clock, Perform perform, Log log)
    : archive_{archive}, number_{number}, run_id_{std::move(run_id)},
      rendezvous_{&rendezvous}, clock_{std::move(clock)}, perform_{std::move(perform)}, log_{std::move(log)},
      soon_{loop}, slow_{loop}, saved_{rendezvous.revision()}, on_disk_{on_disk} {}

void JobKeeper::stepped(std::vector<RendezvousAction> actions) {
  tell_fences(actions);
  const std::uint64_t revision = rendezvous_->revision();
  const bool wait = revision > saved_ && !too_slow_ && std::ranges::any_of(actions, [this](const RendezvousAction& action) { return waits(action); });
  if (wait || !held_.empty()) {
    held_.push_back({wait ? revision : saved_, std::move(actions), clock_()});
  } else {
    perform_(std::move(actions));
  }
  if (revision == saved_ || saving_) return;
  wait ? save() : save_after(archive_.save_delay());
}

bool JobKeeper::waits(const RendezvousAction& action) const {
  const auto* tell = std::get_if<Tell>(&action);
  const bool hosts = tell && std::holds_alternative<HostStore>(tell->message);
  return decides(action) && !(hosts && archive_.binds());
}

void JobKeeper::tell_fences(std::vector<RendezvousAction>& actions) {
  std::vector<RendezvousAction> fences;
  for (const RendezvousAction& action : actions) {
    const auto* tell = std::get_if<Tell>(&action);
    const auto* stop = tell ? std::get_if<StopWorkers>(&tell->message) : nullptr;
    if (stop && stop->cause == StopCause::fenced) fences.push_back(action);
  }
  if (fences.empty()) return;
  for (const RendezvousAction& fence : fences) {
    const Peer peer = std::get<Tell>(fence).peer;
    for (Held& held : held_) {
      std::erase_if(held.actions, [&](const RendezvousAction& action) {
        const auto* tell = std::get_if<Tell>(&action);
        return tell && tell->peer == peer;
      });
    }
    std::erase(actions, fence);
  }
  perform_(std::move(fences));
}

void JobKeeper::save_after(Duration delay) {
  if (std::exchange(waiting_, true)) return;
  soon_.expires_after(delay);
  soon_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (error || !self || !self->rendezvous_) return;
    self->waiting_ = false;
    if (!self->saving_) self->save();
  });
}

void JobKeeper::save() {
  saving_ = on_disk_ = true;
  const std::uint64_t revision = rendezvous_->revision();
  archive_.write(number_, {run_id_, content(), rendezvous_->verdict()}, [weak = weak_from_this(), revision](const Result<>& result) {
    const auto self = weak.lock();
    if (self && self->rendezvous_) self->saved(revision, result);
  });
  told_slow_ = false;
  watch_save();
}

void JobKeeper::watch_save() {
  slow_.expires_after(slow_limit);
  slow_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (error || !self || !self->rendezvous_) return;
    if (self->archive_.binds()) return self->tell_slow();
    self->log_(
        fmt::format("its state takes longer than {} to be written: it goes on without waiting", seconds(slow_limit)));
    self->too_slow_ = true;
    self->release(everything);
  });
}

/// Members are told what is waited for, and after the join timeout that it was waited for in vain.
void JobKeeper::tell_slow() {
  watch_save();
  if (held_.empty()) return;
  const auto& terms = rendezvous_->terms();
  const Duration waited = clock_() - held_.front().since;
  const bool in_vain = terms && waited >= terms->join_timeout;
  if (!in_vain && std::exchange(told_slow_, true)) return;
  const auto& verdict = rendezvous_->verdict();
  const std::string what = verdict ? fmt::format("the job's end ({}: {})", verdict->exit_code, verdict->reason)
                                   : std::string{"what was decided"};
  std::vector<RendezvousAction> actions;
  const auto& connections = rendezvous_->members().connections();
  for (std::size_t index = 0; index < connections.size(); ++index) {
    if (!connections[index].open || !connections[index].member) continue;
    const Peer peer{static_cast<std::uint32_t>(index)};
    if (in_vain) {
      actions.emplace_back(Refuse{peer, exit_code::unreachable,
                                  fmt::format("{} could not be recorded in etcd within {}", what, seconds(terms->join_timeout))});
    } else {
      actions.emplace_back(Tell{peer, Waiting{fmt::format("waiting for etcd to record {}", what)}});
    }
  }
  log_(fmt::format("{} waits to be recorded since {}", what, seconds(waited)));
  perform_(std::move(actions));
}

/// Of thousands of nodes the bytes take long to make, and the loop has others to serve: a snapshot shares what it tells
/// of each node with the machine, and bytes are made of it on the directory's thread.
std::function<std::string()> JobKeeper::content() const {
  return [saved = SavedJob{run_id_, rendezvous_->snapshot(clock_())}] { return encode_job(saved); };
}

void JobKeeper::saved(std::uint64_t revision, const Result<>& result) {
  slow_.cancel();
  saving_ = false;
  too_slow_ = false;
  saved_ = revision;
  if (!result && !failing_) log_(fmt::format("its state is not kept: {}", result.error().message()));
  if (result && failing_) {
    log_("its state is kept again");
    soon_.cancel();  // of the next try, seconds from now
    waiting_ = false;
  }
  failing_ = !result;
  release(failing_ ? everything : revision);
  if (!rendezvous_ || saving_) return;
  if (failing_) return save_after(retry_delay);
  if (rendezvous_->revision() != saved_) held_.empty() ? save_after(archive_.save_delay()) : save();
}

void JobKeeper::release(std::uint64_t revision) {
  while (!held_.empty() && held_.front().revision <= revision) {
    Held next = std::move(held_.front());
    held_.pop_front();
    perform_(std::move(next.actions));
  }
}

void JobKeeper::let_go() {
  release(everything);
  soon_.cancel();
  slow_.cancel();
  rendezvous_ = nullptr;
}

void JobKeeper::finish() {
  if (rendezvous_->revision() != saved_ || saving_ || failing_) {
    archive_.write(number_, {run_id_, content(), rendezvous_->verdict()}, {});
  }
  let_go();
}

void JobKeeper::abandon() {
  held_.clear();
  let_go();
}

void JobKeeper::drop() {
  held_.clear();
  forget();
}

void JobKeeper::forget() {
  let_go();
  if (on_disk_) archive_.remove(number_, run_id_);
}

}  // namespace torchup
