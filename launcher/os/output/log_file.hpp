#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "launcher/os/output/disk_thread.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// Losses of one file are told no more often.
inline constexpr std::chrono::minutes loss_interval{1};
/// How often a file that is written is looked for where it should be.
inline constexpr std::chrono::seconds deletion_look_interval{1};

/// One file that a disk thread writes. A disk may be full, slow or gone, and somebody may delete what is written: that
/// is not the job's fault. What fails is dropped, counted and told; the next bytes are tried again.
///
/// Used from the loop; what its comments say of the disk thread happens there.
class LogFile : public std::enable_shared_from_this<LogFile> {
 public:
  struct Failure {
    std::string path;
    std::string reason;
    std::uint64_t bytes_lost = 0;  ///< of this file, so far
  };
  /// Told on the loop: a file's first failure at once, later ones once in loss_interval and by report_losses.
  using Listener = std::function<void(Failure)>;

  /// A new file `name` below the folder that `open_in` brings; `path` is its name for people. With `bytes_max` > 0 it
  /// is renamed to `<name>.1` before it would grow longer, at a line end if there is one, and begun anew.
  static std::shared_ptr<LogFile> created(DiskThread& disk, std::string name, std::string path, std::uint64_t bytes_max,
                                          Listener listener);
  /// A file to be appended to, opened by its first write; may be a FIFO with a reader.
  static std::shared_ptr<LogFile> appended(DiskThread& disk, std::string path, Listener listener);

  /// Never blocks.
  void write(std::string bytes);
  /// The disk is dead: what is written from now on is lost at once.
  void give_up() { given_up_ = true; }
  [[nodiscard]] bool given_up() const { return given_up_; }
  /// Counts bytes that are not even to be tried.
  void lose(std::uint64_t bytes) { lost_ += bytes; }
  /// Tells losses that were not told yet, after what was given before.
  void report_losses();

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t bytes_lost() const { return lost_; }

  /// On the disk thread: creates the file; once. Errors: the system's, with the path.
  Result<> open_in(std::shared_ptr<const UniqueFd> folder);

 private:
  using Clock = std::chrono::steady_clock;
  LogFile(DiskThread& disk, std::string name, std::string path, std::uint64_t bytes_max, Listener listener);

  Result<> open();
  void write_now(std::string_view bytes);
  void look_for_it(bool now);
  [[nodiscard]] std::size_t fitting(std::string_view bytes) const;
  Result<> rotate();
  void fail(std::uint64_t bytes, std::string reason);
  void tell(bool at_once);

  DiskThread& disk_;
  const LoopPost post_;
  const std::string path_;
  const Listener listener_;
  const std::string name_;  ///< below the folder; empty: `path_` is appended to
  const std::uint64_t bytes_max_;
  bool given_up_ = false;
  std::atomic<std::uint64_t> lost_ = 0;
  // The rest is the disk thread's.
  std::shared_ptr<const UniqueFd> folder_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;
  std::uint64_t told_ = 0;
  std::uint64_t unproved_ = 0;  ///< bytes written since the file was last seen in its place
  Clock::time_point looked_{};
  std::string reason_;
  std::optional<Clock::time_point> told_at_;
};

}  // namespace torchup
