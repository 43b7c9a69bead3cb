#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/net/coordinator/job_archive.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

/// Of one file: what is larger is neither written nor read. There is room for all that agents may tell a coordinator
/// (told_bytes_max), were it in one job.
inline constexpr std::size_t state_bytes_max = std::size_t{256} << 20;

/// A folder with one small file for each of many things, each either the old or the new one whole, whatever happens and
/// whenever: written beside it, flushed, renamed, the folder flushed. One process at a time may use it.
///
/// Files are numbered: job-7.state. A thread of its own writes them, so that a slow disk holds up nobody; what is asked
/// for comes back by the loop.
class StateDirectory final : public JobArchive {
 public:
  /// Makes the folder where it is missing (its parent must be there), locks it, removes what was half written.
  ///
  /// Errors: the system's own, with the name of what could not be used; errc::refused when another process has it, or
  /// when it belongs to another user or anybody may write in it.
  [[nodiscard]] static Result<std::unique_ptr<StateDirectory>> open(boost::asio::io_context& loop, std::string path);

  /// Writes what it was given, then unlocks. No `done` is called any more.
  ~StateDirectory() override;

  struct File {
    std::uint64_t number = 0;
    std::string path = {};
    std::string content = {};
  };
  /// All files, by number.
  [[nodiscard]] Result<std::vector<File>> read() const;

  /// Replaces the file; `done` is called once it would survive a power cut. When the disk fails the file is removed,
  /// where that is possible: no state is better than an old one. Where only descriptors or memory have run out it stays
  /// as it is. errc::limit_exceeded beyond state_bytes_max.
  ///
  /// `content` is called on the directory's own thread, which has time for what the loop has not: to make bytes of a
  /// snapshot. It owns all that it uses. Whatever it throws is an error of this write.
  void write(std::uint64_t number, std::function<std::string()> content, Done done);
  void write(std::uint64_t number, Entry entry, Done done) override {
    write(number, std::move(entry.content), std::move(done));
  }
  /// For good: nothing is written to that number again, and what still waits to be is not. A few writes go before
  /// removals, and removals that wait cost one flush of the folder together.
  void remove(std::uint64_t number);
  void remove(std::uint64_t number, const RunId&) override { remove(number); }

  /// One who has a disk alone goes on without it.
  [[nodiscard]] bool binds() const override { return false; }
  [[nodiscard]] Duration save_delay() const override { return std::chrono::milliseconds{100}; }

  [[nodiscard]] const std::string& path() const;

 private:
  class Impl;
  explicit StateDirectory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace torchup
