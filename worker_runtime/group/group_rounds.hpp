#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <torchup/process_group.hpp>

namespace torchup {

// The job's group through the rounds of Elastic::run: a handle that stays, and what it stands for. All copies follow.

/// Takes its connections down, whatever has become of them, and those of groups that an exception has left. Waits for
/// nobody. From here until it has joined again every collective throws Error.
void take_down(const ProcessGroup& group);

/// Joins the next round as the environment says by now: another rank, size, store, backend in the same handle. `check`
/// is asked often while others are waited for, and throws where this round is over too.
void join_again(const ProcessGroup& group, std::function<void()> check);

/// Whether this group can join again: it is the job's, and the environment said how.
[[nodiscard]] bool can_join_again(const ProcessGroup& group);

/// How many earlier rounds this handle has been through. What was agreed on among ranks belongs to one of them.
[[nodiscard]] int round_of(const ProcessGroup& group);

/// Elastic::run begins, for the `number`-th time in this process, or a new round in it: the group's store has keys of
/// its own from here on, and collectives are those of all ranks.
void enter_run(const ProcessGroup& group, int number);
void leave_run(const ProcessGroup& group);
/// Collectives that the program has done before, and groups that it has made, in which a newcomer would wait for ranks
/// that are inside of Elastic::run already.
[[nodiscard]] std::int64_t uses_before_run(const ProcessGroup& group);

/// Returns when all ranks have come here, over the store, which can be interrupted with any backend.
void meet_all(const ProcessGroup& group, const std::string& where);

/// This process sets up what the other ranks of its round have already, being inside of Elastic::run: nobody would take
/// part in a collective, and none is needed, for Elastic::run brings all to one state.
[[nodiscard]] bool sets_up_alone(const ProcessGroup& group);

/// While it lives, collectives over `group` are the library's own, which does without them where sets_up_alone().
class [[nodiscard]] OwnCollectives {
 public:
  explicit OwnCollectives(const ProcessGroup& group);
  ~OwnCollectives();
  OwnCollectives(const OwnCollectives&) = delete;
  OwnCollectives& operator=(const OwnCollectives&) = delete;

 private:
  std::atomic<std::int64_t>& uses_;
  const std::int64_t before_;
};

}  // namespace torchup
