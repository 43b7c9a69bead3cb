#include "launcher/os/output/stream_reader.hpp"

#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "launcher/os/io/pty.hpp"

namespace torchup {
namespace {

/// So many streams are read before the loop looks at anything else.
constexpr int streams_per_turn = 16;
/// What is read of a dead worker's stream at once; a pipe holds 64 KiB.
constexpr std::size_t last_lines_bytes_max = std::size_t{1} << 20;

}  // namespace

WorkerStream::WorkerStream(StreamReader& reader, StreamTargets targets, std::function<void()> ended)
    : reader_{reader}, targets_{std::move(targets)}, ended_{std::move(ended)} {}

WorkerStream::~WorkerStream() {
  if (!fd_) return;
  close();
  reader_.flush();
}

void WorkerStream::open(UniqueFd fd, bool is_pty) {
  fd_ = std::move(fd);
  is_pty_ = is_pty;
  if (targets_.console != nullptr) source_ = targets_.console->turns().add(targets_.rules);
  reader_.add(*this);
}

std::size_t WorkerStream::read(TimePoint now) {
  auto& buffer = reader_.buffer_;
  const ssize_t count = ::read(fd_.get(), buffer.data(), buffer.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (count <= 0) {  // a pty says EIO when its last user has gone
    close();
    return 0;
  }
  const std::string_view bytes{buffer.data(), static_cast<std::size_t>(count)};
  targets_.memory->last_output = now;
  targets_.memory->tail.feed(targets_.kind, bytes);
  if (targets_.log) log_batch_ += bytes;
  if (Console* console = targets_.console; console != nullptr) {
    console->turns().feed(source_, bytes, now, console->batch(), duplicates_batch_);
    reader_.watch(*this);
  }
  reader_.touch(*this);
  return bytes.size();
}

void WorkerStream::read_rest() {
  const TimePoint now = std::chrono::steady_clock::now();
  std::size_t bytes = 0;
  while (fd_ && bytes < last_lines_bytes_max) {
    const std::size_t count = read(now);
    if (count == 0) return;
    bytes += count;
  }
}

void WorkerStream::close() { static_cast<void>(stop()); }

void WorkerStream::hand_over(WorkerStream& successor) {
  read_rest();
  if (UniqueFd fd = stop()) successor.open(std::move(fd), is_pty_);
}

/// Reads no more. Returns what was read.
UniqueFd WorkerStream::stop() {
  if (!fd_) return {};
  reader_.remove(*this);
  UniqueFd fd = std::move(fd_);
  if (Console* console = targets_.console; console != nullptr)
    console->turns().end(source_, console->batch(), duplicates_batch_);
  flush_files();
  ended_();
  return fd;
}

void WorkerStream::flush_files() {
  if (!log_batch_.empty()) targets_.log->write(std::exchange(log_batch_, {}));
  if (!duplicates_batch_.empty() && targets_.duplicates)
    targets_.duplicates->write(std::exchange(duplicates_batch_, {}));
  duplicates_batch_.clear();
  touched_ = false;
}

int WorkerStream::unread() const {
  int bytes = 0;
  if (fd_) ::ioctl(fd_.get(), FIONREAD, &bytes);
  return bytes;
}

void WorkerStream::window_changed() const {
  if (fd_ && is_pty_) copy_window_size(targets_.console->descriptor(), fd_.get());
}

Result<> StreamReader::start() {
  if (poll_.is_open()) return {};
  UniqueFd made{::epoll_create1(EPOLL_CLOEXEC)};
  if (!made) return system_error("watch the workers' output");
  poll_.assign(made.release());
  return {};
}

void StreamReader::add(WorkerStream& stream) {
  streams_.push_back(&stream);
  watch(stream);
  wait();
}

void StreamReader::remove(WorkerStream& stream) {
  if (std::exchange(stream.watched_, false))
    ::epoll_ctl(poll_.native_handle(), EPOLL_CTL_DEL, stream.fd_.get(), nullptr);
  std::erase(streams_, &stream);
  std::erase(touched_, &stream);
  // A wait for nothing would keep the loop from its end.
  if (streams_.empty() && waiting_) poll_.cancel();
}

void StreamReader::touch(WorkerStream& stream) {
  if (!std::exchange(stream.touched_, true)) touched_.push_back(&stream);
}

void StreamReader::watch(WorkerStream& stream) {
  Console* const console = stream.targets_.console;
  const bool holds_enough = console != nullptr && !console->turns().may_feed(stream.source_);
  held_back_ = held_back_ || holds_enough;
  const bool stopped = (disk_full_ && stream.targets_.log && !stream.targets_.log->given_up()) ||
                       (console != nullptr && console->is_full());
  const bool wanted = !stopped && !holds_enough;
  if (wanted == stream.watched_) return;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = &stream;
  const int done = ::epoll_ctl(poll_.native_handle(), wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, stream.fd_.get(), &event);
  stream.watched_ = wanted && done == 0;
  if (wanted && done != 0) watch_later();
}

/// The system has no memory for one more, or this user has as many as he may.
void StreamReader::watch_later() {
  constexpr Duration pause = std::chrono::milliseconds{100};
  later_.expires_after(pause);
  later_.async_wait([this](const boost::system::error_code& error) {
    if (!error) watch_all();
  });
}

/// Those first whose turn would have been next: a flood stops and lets go all streams every few of them.
void StreamReader::watch_all() {
  held_back_ = false;
  const auto last = std::find(streams_.begin(), streams_.end(), last_read_);
  const auto next = last == streams_.end() ? streams_.begin() : std::next(last);
  std::for_each(next, streams_.end(), [this](WorkerStream* each) { watch(*each); });
  std::for_each(streams_.begin(), next, [this](WorkerStream* each) { watch(*each); });
}

void StreamReader::wait() {
  if (waiting_ || streams_.empty()) return;
  waiting_ = true;
  poll_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
    waiting_ = false;
    if (!error) turn();
    wait();
  });
}

bool StreamReader::turn() {
  if (streams_.empty()) return false;
  std::array<epoll_event, streams_per_turn> ready{};
  const int count = ::epoll_wait(poll_.native_handle(), ready.data(), streams_per_turn, 0);
  const TimePoint now = std::chrono::steady_clock::now();
  bool any = false;
  for (int index = 0; index < count; ++index) {
    auto* each = static_cast<WorkerStream*>(ready[static_cast<std::size_t>(index)].data.ptr);
    if (!each->watched_) continue;
    last_read_ = each;
    any = each->read(now) != 0 || any;
  }
  flush();
  return any;
}

void StreamReader::window_changed() const {
  for (const WorkerStream* each : streams_) each->window_changed();
}

void StreamReader::flush() {
  for (WorkerStream* each : std::exchange(touched_, {})) each->flush_files();
  const auto full = [](const Console* console) { return console->is_full(); };
  const auto full_before = std::count_if(consoles_.begin(), consoles_.end(), full);
  const bool disk_full_before = disk_full_;
  for (Console* console : consoles_) console->flush();
  if (!disk_full_ && disk_.queued_bytes() > queue_bytes_max) {
    disk_full_ = true;
    disk_.when_at_most(queue_bytes_max / 2, [this] {
      disk_full_ = false;
      watch_all();
    });
  }
  const bool changed = full_before != std::count_if(consoles_.begin(), consoles_.end(), full);
  if (changed || held_back_ || disk_full_before != disk_full_) watch_all();
}

}  // namespace torchup
