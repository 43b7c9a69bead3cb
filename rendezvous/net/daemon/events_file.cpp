#include "rendezvous/net/daemon/events_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <future>
#include <mutex>
#include <string_view>
#include <utility>

#include "rendezvous/net/io/log.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "rendezvous/net/io/write_all.hpp"
#include "rendezvous/net/io/writer_thread.hpp"

namespace torchup {
namespace {

/// How long after a line it is looked whether it was written.
constexpr Duration look_interval = std::chrono::milliseconds{500};

/// The file, and how it goes: shared by the loop and the thread, which may outlive it.
class Written {
 public:
  struct State {
    bool failing = false;  ///< the last line was lost
    std::uint64_t lost = 0;
    std::string reason = {};  ///< of the last loss
  };

  explicit Written(UniqueFd file) : file_{std::move(file)} {}

  /// For one thread. What is left of a line that was cut off is ended first, so that the next one stays whole.
  void write(std::string line) {
    if (cut_off_) line.insert(line.begin(), '\n');
    std::string_view rest = line;
    const int error = write_all(file_.get(), rest);
    if (error == 0) {
      cut_off_ = false;
      const std::lock_guard lock{mutex_};
      state_.failing = false;
    } else {
      cut_off_ = cut_off_ || rest.size() < line.size();
      lose(boost::system::error_code{error, boost::system::system_category()}.message());
    }
  }
  void lose(std::string reason) {
    const std::lock_guard lock{mutex_};
    state_.failing = true;
    ++state_.lost;
    state_.reason = std::move(reason);
  }
  [[nodiscard]] State state() const {
    const std::lock_guard lock{mutex_};
    return state_;
  }

 private:
  UniqueFd file_;
  bool cut_off_ = false;
  mutable std::mutex mutex_;
  State state_;
};

}  // namespace

class EventsFile::Impl {
 public:
  Impl(boost::asio::io_context& loop, UniqueFd file, std::string path, LogSink log)
      : written_{std::make_shared<Written>(std::move(file))}, path_{std::move(path)}, log_{std::move(log)}, look_{
                                                                                                                loop} {}

  ~Impl() {
    const auto done = std::make_shared<std::promise<void>>();
    thread_.when_at_most(0, [done] { done->set_value(); });
    done->get_future().wait_for(last_lines_limit);
    tell();
    if (telling_) tell_count(written_->state().lost);
  }

  void write(std::string line) {
    const std::size_t size = line.size();
    if (thread_.queued_bytes() + size > unwritten_event_bytes_max) {
      written_->lose("it does not take them as fast as they come");
    } else {
      thread_.put([written = written_, line = std::move(line)]() mutable { written->write(std::move(line)); }, size);
    }
    look_soon();
  }

 private:
  void look_soon() {
    if (std::exchange(looking_, true)) return;
    look_.expires_after(look_interval);
    look_.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      looking_ = false;
      tell();
      if (thread_.queued_bytes() > 0 || telling_ != written_->state().failing) look_soon();
    });
  }

  void tell() {
    const Written::State state = written_->state();
    if (!telling_ && state.lost > told_) {
      log_({LogLevel::warning, fmt::format("--events: {}: {}: events are lost", path_, state.reason)});
      telling_ = true;
    } else if (telling_ && !state.failing) {
      tell_count(state.lost);
    }
  }

  void tell_count(std::uint64_t lost) {
    log_(fmt::format("--events: {}: {} events are lost", path_, lost - std::exchange(told_, lost)));
    telling_ = false;
  }

  std::shared_ptr<Written> written_;
  std::string path_;
  LogSink log_;
  boost::asio::steady_timer look_;
  bool looking_ = false;
  bool telling_ = false;    ///< that some are lost; how many, when it is over
  std::uint64_t told_ = 0;  ///< losses whose number was told
  WriterThread thread_;     ///< the last: it ends first
};

Result<std::unique_ptr<EventsFile>> EventsFile::open(boost::asio::io_context& loop, std::string path, LogSink log) {
  constexpr int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  UniqueFd file{::open(path.c_str(), flags, 0666)};  // less the umask
  if (!file) return system_error("--events: " + path);
  return std::unique_ptr<EventsFile>{
      new EventsFile{std::make_unique<Impl>(loop, std::move(file), std::move(path), std::move(log))}};
}

EventsFile::EventsFile(std::unique_ptr<Impl> impl) : impl_{std::move(impl)} {}
EventsFile::~EventsFile() = default;
void EventsFile::write(std::string line) { impl_->write(std::move(line)); }

}  // namespace torchup
