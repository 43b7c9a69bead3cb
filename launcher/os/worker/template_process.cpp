#include "launcher/os/worker/template_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <csignal>
#include <string_view>
#include <utility>

#include "launcher/core/text/stored_zip.hpp"
#include "launcher/os/io/child_end.hpp"
#include "launcher/os/io/packet.hpp"
#include "launcher/os/worker/template_requests.hpp"
#include "launcher/os/worker/worker_channel.hpp"

namespace torchup {

/// launcher/python/injected/template.py
extern const std::string_view template_text;

namespace {

/// A process that ends between `parked` and `started` has a successor, once. Of those that end before they park, which
/// a limit of processes or of memory does to all, no more are made one after the other.
constexpr int tries_max = 2;

using State = ParkedProcess::State;

/// A memfd with this content, to be read from its beginning.
Result<UniqueFd> memory_file(const char* name, std::string_view text) {
  UniqueFd file{::memfd_create(name, MFD_CLOEXEC)};
  if (!file) return system_error("memfd_create");
  while (!text.empty()) {
    const ssize_t count = ::write(file.get(), text.data(), text.size());
    if (count < 0) return system_error("memfd");
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  if (::lseek(file.get(), 0, SEEK_SET) != 0) return system_error("memfd");
  return file;
}

}  // namespace

TemplateProcess::TemplateProcess(asio::io_context& loop, Settings settings, Hooks hooks)
    : loop_{loop}, settings_{std::move(settings)}, hooks_{std::move(hooks)}, life_{settings_.modules,
                                                                                   settings_.program.python},
      spawner_{loop}, process_{loop}, control_{loop}, import_timer_{loop}, silence_timer_{loop}, stock_timer_{loop} {}

// ---- The template.

/// Python finds our text there. For a native program it keeps the place where a worker finds its channel, so that what
/// its main opens has the numbers that it has in a worker.
Result<UniqueFd> TemplateProcess::descriptor_4() const {
  if (settings_.program.python) {
    return memory_file("torchup_template", stored_zip("sitecustomize.py", template_text));
  }
  UniqueFd null{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  return null ? Result<UniqueFd>{std::move(null)} : system_error("/dev/null");
}

void TemplateProcess::begin() {
  life_.begins(std::chrono::steady_clock::now());
  auto source = descriptor_4();
  auto pair = make_channel_pair();
  auto streams = hooks_.streams();
  UniqueFd in{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  if (!source || !pair || !streams || !in) {
    const Error error = !source    ? source.error()
                        : !pair    ? pair.error()
                        : !streams ? streams.error()
                                   : system_error("/dev/null");
    return note(life_.not_started(error.message()));
  }
  ChildRequest request = template_request(settings_.program, settings_.modules, *settings_.environment, settings_.hook,
                                          {page_descriptor, pair->inode, 0});
  request.in = std::move(in);
  request.out = std::move((*streams)[0]);
  request.err = std::move((*streams)[1]);
  request.heritage = settings_.heritage;
  request.cpus = settings_.cpus;
  request.more = {pair->theirs.get(), source->get()};
  control_.assign(pair->ours.release());
  // Shared, because a std::function must be copyable; they are open until the child has its own.
  auto theirs = std::make_shared<std::pair<UniqueFd, UniqueFd>>(std::move(pair->theirs), *std::move(source));
  spawner_.start(std::move(request), [this, theirs](Result<ChildProcess> child) mutable {
    theirs.reset();
    on_started(std::move(child));
  });
  import_timer_.expires_after(settings_.import_limit);
  import_timer_.async_wait([this](boost::system::error_code error) {
    if (error) return;
    const auto event = life_.takes_too_long();
    if (event && pid_ > 0) ::kill(pid_, SIGKILL);
    note(event);
  });
}

void TemplateProcess::on_started(Result<ChildProcess> child) {
  if (!child) {
    control_.close();
    return note(life_.not_started(child.error().message()));
  }
  pid_ = child->pid;
  life_.has_pid(pid_);
  process_.assign(child->pidfd.release());
  pollfd ended{process_.native_handle(), POLLIN, 0};
  if (::poll(&ended, 1, 0) == 1) life_.may_be_swept();
  process_.async_wait(Descriptor::wait_read, [this](boost::system::error_code error) {
    if (!error) on_ended();
  });
  if (ended_ || life_.state() == TemplateLife::State::given_up) {
    ::kill(pid_, SIGKILL);
    return;
  }
  hear();
}

void TemplateProcess::hear() {
  while (control_.is_open()) {
    const auto packet = receive_packet(control_.native_handle());
    if (!packet) return control_.close();  // its end is told by its pidfd
    if (!*packet) break;
    note(life_.says((*packet)->text, std::chrono::steady_clock::now()));
  }
  if (!control_.is_open()) return;
  control_.async_wait(Descriptor::wait_read, [this](boost::system::error_code error) {
    if (!error) hear();
  });
}

void TemplateProcess::on_ended() {
  if (control_.is_open()) {
    while (true) {  // its last words come first
      const auto packet = receive_packet(control_.native_handle());
      if (!packet || !*packet) break;
      note(life_.says((*packet)->text, std::chrono::steady_clock::now()));
    }
    control_.close();
  }
  const int exit_code = reap_child(pid_);
  process_.close();
  pid_ = 0;
  hooks_.reaped();
  if (!ended_) note(life_.ended(exit_code));
}

/// Tells of what has changed with the template, and acts on it.
void TemplateProcess::note(std::optional<EventBody> event) {
  if (!event || ended_) return;
  hooks_.record(*std::move(event));
  if (is_loading()) return;
  import_timer_.cancel();
  if (stocked_) stock();
  serve();
  asio::post(loop_, [this] { hooks_.settled(); });
}

// ---- Workers.

void TemplateProcess::start(ChildRequest request, Handler handler) {
  stocked_ = false;
  stock_timer_.cancel();
  if (orders_.empty()) unmade_ = 0;  // what could not be made beforehand is tried again
  orders_.push_back(std::make_shared<Order>(Order{std::move(request), std::move(handler), {}, nullptr}));
  serve();
}

std::size_t TemplateProcess::count(State state) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(processes_, [state](const ParkedProcess& each) { return each.state() == state; }));
}

/// Gives each order a parked process, or sees to it that there will be one.
void TemplateProcess::serve() {
  std::size_t waiting = 0;
  for (std::size_t i = 0; i < orders_.size(); ++i) {
    const std::shared_ptr<Order> order = orders_[i];
    if (order->answer || order->process || order->by_exec) continue;
    if (order->cancelled) {
      answer(*order, system_error(ECANCELED, settings_.program.executable));
    } else if (order->tries < tries_max && hand_out(*order)) {
      continue;
    } else if (order->tries >= tries_max || unmade_ >= tries_max) {
      exec(order);
    } else {
      ++waiting;
    }
  }
  const std::size_t coming = count(State::being_made);
  if (waiting > coming && life_.state() == TemplateLife::State::serving) {
    fork(waiting - coming, orders_.back()->request.cgroup);
  }
  if (waiting > count(State::being_made)) {
    for (const auto& order : std::vector(orders_.begin(), orders_.end())) {
      if (!order->answer && !order->process && !order->by_exec) exec(order);
    }
  }
  watch_silence();
  tell_answers();
}

/// False: nobody is parked.
bool TemplateProcess::hand_out(Order& order) {
  const auto parked = std::ranges::find(processes_, State::parked, &ParkedProcess::state);
  if (parked == processes_.end()) return false;
  ++order.tries;
  ChildRequest& request = order.request;
  const auto bytes = to_bytes(fork_request(request, parked->address(), settings_.program));
  const auto file = bytes ? memory_file("torchup_request", *bytes) : Result<UniqueFd>{bytes.error()};
  if (!file) {
    answer(order, file.error());
    return true;
  }
  std::vector<int> descriptors{file->get()};
  const std::array<const UniqueFd*, 3> streams{&request.in, &request.out, &request.err};
  for (int i = 0; i < 3; ++i) {
    const UniqueFd& stream = *streams[static_cast<std::size_t>(i)];
    descriptors.push_back(stream ? stream.get() : i);
  }
  if (request.page >= 0) descriptors.push_back(request.page);
  order.process = &*parked;
  parked->start(descriptors);
  return true;
}

void TemplateProcess::exec(const std::shared_ptr<Order>& order) {
  order->by_exec = true;
  hooks_.exec(std::move(order->request), [this, order](Result<ChildProcess> child) {
    answer(*order, std::move(child));
    tell_answers();
  });
}

/// The order's descriptors go now: a pipe ends only when its last writer has closed it.
void TemplateProcess::answer(Order& order, Result<ChildProcess> child) {
  order.process = nullptr;
  order.request = {};
  order.answer.emplace(std::move(child));
}

void TemplateProcess::tell_answers() {
  if (orders_.empty() || !orders_.front()->answer) return;
  asio::post(loop_, [this] {
    if (orders_.empty() || !orders_.front()->answer) return;
    // Until here its process is known by its order, from here on by the worker that the handler makes of it.
    const std::shared_ptr<Order> order = std::move(orders_.front());
    orders_.pop_front();
    order->handler(*std::move(order->answer));
    tell_answers();
  });
}

void TemplateProcess::on_changed(ParkedProcess& process) {
  const auto order = std::ranges::find_if(orders_, [&](const auto& each) { return each->process == &process; });
  const bool ordered = order != orders_.end();
  const State state = process.state();
  if (state == State::started && ordered) answer(**order, process.take());
  if (state == State::refused && ordered) {
    // exec has other means; where it has not, it knows the true error.
    (*order)->process = nullptr;
    (*order)->tries = tries_max;
    if (!std::exchange(refused_, true)) {
      hooks_.record(
          event::Warning{fmt::format("--preload: a forked process cannot take a worker's place ({}); such "
                                     "workers are started without it",
                                     process.refusal().message())});
    }
  }
  if (state == State::gone && ordered) (*order)->process = nullptr;
  const bool unmade = process.could_not_park() && control_.is_open();  // else it went with its template
  if (state == State::started || state == State::gone) {
    processes_.remove_if([&](const ParkedProcess& each) { return &each == &process; });
  }
  if (ended_) return;
  if (state == State::gone) hooks_.reaped();
  if (state == State::parked) unmade_ = 0;
  if (unmade && ++unmade_ == tries_max) {
    hooks_.record(event::Warning{
        "--preload: forked processes end before they can take a worker's place (a limit of processes or of memory?); "
        "workers of this attempt are started without it"});
  }
  if (state == State::gone && stocked_ && replacements_ > 0) {
    --replacements_;
    stock();
  }
  serve();
}

/// Orders `count` processes. They are in `processes_` as far as that can be done.
void TemplateProcess::fork(std::size_t count, int cgroup) {
  if (!control_.is_open()) return;
  std::vector<ChannelPair> pairs;
  std::vector<int> descriptors;
  if (cgroup >= 0) descriptors.push_back(cgroup);
  while (pairs.size() < count && descriptors.size() < packet_descriptors_max) {
    auto pair = make_channel_pair();
    if (!pair || !ask_for_senders(pair->ours.get())) break;
    descriptors.push_back(pair->theirs.get());
    pairs.push_back(*std::move(pair));
  }
  if (pairs.empty()) return;
  if (!send_packet(control_.native_handle(), cgroup >= 0 ? "fork cgroup" : "fork", descriptors)) return;
  for (ChannelPair& pair : pairs) {
    // It is told which process has changed once it has a place.
    auto place = std::make_shared<ParkedProcess*>(nullptr);
    processes_.emplace_back(loop_, std::move(pair.ours), pair.inode, pid_, [this, place] { on_changed(**place); });
    *place = &processes_.back();
  }
}

// ---- Beforehand.

void TemplateProcess::attempt_runs() {
  stocked_ = false;
  unmade_ = 0;
  // Where workers were kept or executed some are left over. They are in the cgroup of the attempt that runs.
  for (ParkedProcess& process : processes_) process.kill();
  if (settings_.spare == 0) return;
  stock_timer_.expires_after(settings_.pause);
  stock_timer_.async_wait([this](boost::system::error_code error) {
    if (error || ended_) return;
    stocked_ = true;
    replacements_ = settings_.spare;
    stock();
  });
}

void TemplateProcess::stock() {
  if (life_.state() == TemplateLife::State::absent) return begin();
  const std::size_t there = count(State::parked) + count(State::being_made);
  const auto wanted = static_cast<std::size_t>(settings_.spare);
  if (life_.state() != TemplateLife::State::serving || there >= wanted) return;
  fork(wanted - there, hooks_.next_cgroup());
  watch_silence();
}

void TemplateProcess::attempt_cancelled() {
  stock_timer_.cancel();
  stocked_ = false;
  for (const auto& order : orders_) order->cancelled = true;
  for (ParkedProcess& process : processes_) process.kill();
  serve();
}

// ---- Those that do not answer.

void TemplateProcess::watch_silence() {
  const bool waits = count(State::being_made) + count(State::starting) > 0;
  silence_timer_.expires_after(settings_.fork_limit);  // ends the wait so far
  if (!waits) return;
  silence_timer_.async_wait([this](boost::system::error_code error) {
    if (!error) on_silence();
  });
}

/// The template stands still, or a process that it has made: which of them cannot be told from here. Of those that are
/// being made none is waited for any more: they may stand still for ever, and hold their end of the pair.
void TemplateProcess::on_silence() {
  const bool silent = pid_ > 0 && std::ranges::any_of(processes_, [this](const ParkedProcess& each) {
                        return each.state() == State::being_made && each.maker() == pid_;
                      });
  for (ParkedProcess& process : processes_) {
    if (process.state() == State::being_made) process.abandon();
    if (process.state() == State::starting) process.kill();
  }
  if (!silent) return;
  life_.is_silent();
  control_.close();
  ::kill(pid_, SIGKILL);
}

// ---- All of them.

std::vector<pid_t> TemplateProcess::known() {
  std::vector<pid_t> pids;
  if (pid_ > 0) pids.push_back(pid_);
  for (ParkedProcess& process : processes_) {
    process.catch_up();
    if (process.pid() > 0) pids.push_back(process.pid());
  }
  for (const auto& order : orders_) {
    if (order->answer && *order->answer) pids.push_back((*order->answer)->pid);
  }
  return pids;
}

void TemplateProcess::end() {
  ended_ = true;
  for (auto* timer : {&import_timer_, &silence_timer_, &stock_timer_}) timer->cancel();
  if (pid_ > 0) ::kill(pid_, SIGKILL);
  for (ParkedProcess& process : processes_) process.kill();
}

}  // namespace torchup
