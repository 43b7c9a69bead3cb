#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/core/diagnosis/worker_seen.hpp"
#include "launcher/os/diagnosis/look_mail.hpp"
#include "launcher/os/diagnosis/look_order.hpp"
#include "launcher/os/diagnosis/stack_helper.hpp"
#include "launcher/os/diagnosis/worker_view.hpp"
#include "launcher/os/io/loop_post.hpp"

namespace torchup {

// A worker's sheet is done when it has grown and then rested, and its helper does not run. A worker that goes on
// writing is cut off after the limit.
inline constexpr Duration stack_rest = std::chrono::milliseconds{15};
inline constexpr Duration stack_limit = std::chrono::milliseconds{500};
inline constexpr Duration answer_limit = std::chrono::seconds{1};
inline constexpr Duration between_looks = std::chrono::seconds{1};
/// Native stacks that nobody has given until then are left out. A look's end comes before in any case.
inline constexpr Duration native_limit = std::chrono::seconds{5};
/// For what sleeping workers wait for, at one moment: more lists of sockets are not searched.
inline constexpr Duration kernel_targets_limit = std::chrono::milliseconds{300};

/// One look at this node's workers, all at once. Lives on a thread of its own, which it keeps waiting; whatever the
/// workers write or do, it ends within seconds, and holds no more of theirs than their areas of memory.
///
/// A moment: the page, the kernel's view, then Python's stacks, then (of those with a helper thread) the answer to
/// `look`. Between the two moments native stacks are read of who may be a culprit. Who has not answered at the first
/// moment is not asked again.
class LocalLook {
 public:
  struct Means {
    LookMail& mail;
    const LoopPost& post;       ///< to the loop, where questions are said
    std::string stack_program;  ///< as StackHelper's
  };
  LocalLook(LookOrder order, Means means);
  /// Nothing: nobody waits for it any more.
  [[nodiscard]] std::optional<LookTaken> take();
  /// Only the answers to `look`.
  [[nodiscard]] std::optional<ArrivalsTaken> take_arrivals();

 private:
  struct Subject {
    LookedAt worker;
    pid_t process = 0;  ///< that is looked at: the worker, or the one below it that has claimed its page
    WorkerMoments moments = {};
    // Of the moment that is taken now:
    enum class Stack : std::uint8_t { none, waits, grows };
    Stack stack = Stack::none;
    bool is_silent = false;  ///< it was asked for its stack, and gave none
    std::int64_t sheet_end = 0;
    TimePoint grown{};
    std::optional<TimePoint> answer_until = {};  ///< it is waited for
    [[nodiscard]] WorkerSeen& now() { return moments.second ? *moments.second : moments.first; }
  };

  void see_all();
  void see(Subject& subject, TimePoint targets_until);
  void see_activity();
  void ask_for_stacks();
  [[nodiscard]] static bool writes_on(Subject& subject);
  void look_at_sheets(TimePoint until);
  void ask_for_answer(Subject& subject);
  void collect(TimePoint until);
  [[nodiscard]] std::optional<TimePoint> next_wake() const;
  void receive(const std::vector<LookMail::Answer>& answers);
  void start_helper();
  [[nodiscard]] RankLook finished_look(const Subject& subject) const;
  void read_helper(TimePoint until, LookTaken& taken);

  const std::uint64_t number_;
  const bool asked_;
  const bool native_;
  Means means_;
  std::vector<Subject> subjects_;
  const TimePoint begun_;
  bool in_passing_ = false;  ///< only the answers are asked for
  std::optional<StackHelper> helper_;
};

}  // namespace torchup
