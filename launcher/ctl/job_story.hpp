#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launcher/ctl/client.hpp"
#include "launcher/ctl/target.hpp"

namespace torchup {

/// When a story is over: as soon as the job has ended and all seems told, or when the launcher of this machine that
/// tells it has said how it ends itself, its workers stopped. Another one is over with the job.
enum class StoryEnd : std::uint8_t { job, launcher };

/// What a job's stream tells from now on to the job's end. A stream that breaks is begun again behind its last event,
/// for a moment where a launcher has told of the job, which ends with it, for a minute where a daemon has.
class JobStory {
 public:
  explicit JobStory(Target target, StoryEnd end = StoryEnd::job);

  /// Why nothing can be told.
  [[nodiscard]] const std::optional<Trouble>& trouble() const { return trouble_; }
  /// What comes next; nothing where nothing came until then, or when it is over.
  [[nodiscard]] std::optional<StreamEvent> next(TimePoint until);
  /// The job has ended and all is told, or nobody is there any more.
  [[nodiscard]] bool over() const { return over_; }
  /// Somebody has said that the job has ended.
  [[nodiscard]] bool ended() const { return ended_; }
  /// With which code: a launcher's of this machine, the coordinator's word, another node's.
  [[nodiscard]] std::optional<int> exit_code() const;
  /// Whether nothing that is still told makes that another one.
  [[nodiscard]] bool is_settled() const { return over_ || own_code_ || (ended_ && !awaits_launcher_); }

 private:
  void begin();
  void begin_again(TimePoint until);
  void note(const StreamEvent& event);

  Target target_;
  std::optional<EventStream> stream_;
  std::optional<Trouble> trouble_;
  std::string last_id_;
  std::optional<TimePoint> gone_since_;
  std::optional<TimePoint> quiet_since_;
  bool awaits_launcher_ = false;
  std::optional<int> verdict_, nodes_word_, own_code_;
  bool ended_ = false;
  bool over_ = false;
};

}  // namespace torchup
