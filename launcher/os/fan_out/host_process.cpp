#include "launcher/os/fan_out/host_process.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <utility>

#include "launcher/core/text/signals.hpp"
#include "launcher/os/io/child_end.hpp"
#include "launcher/os/io/program_file.hpp"

namespace torchup {
namespace {

/// How long a command whose link has ended may take to end too, and the other way round: its code is worth knowing, and
/// its last words are.
constexpr Duration other_end_limit = std::chrono::seconds{2};
constexpr std::size_t said_bytes_max = std::size_t{4} << 10;  // at once

struct CommandPipe {
  UniqueFd reads, writes;
};
Result<CommandPipe> make_command_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return system_error("no pipe");
  return CommandPipe{UniqueFd{ends[0]}, UniqueFd{ends[1]}};
}

/// Errors: errc::bad_value, where nothing of that name can be executed.
Result<std::string> path_of(const std::string& name) {
  const auto found = find_program(name, Where::list_then_path);
  if (found && found->executable) return found->path;
  return fail(errc::bad_value, "there is no program " + name);
}

}  // namespace

HostProcess::HostProcess(asio::io_context& loop, Handlers handlers)
    : loop_{loop}, handlers_{std::move(handlers)}, said_{loop}, ended_{loop}, patience_{loop} {}

Result<> HostProcess::start(const std::vector<std::string>& command, std::vector<std::string> environment,
                            const Heritage& heritage) {
  auto path = command.front().find('/') == std::string::npos ? path_of(command.front()) : command.front();
  if (!path) return path.error();
  auto in = make_command_pipe(), out = make_command_pipe(), err = make_command_pipe();
  for (const auto* pipe : {&in, &out, &err}) {
    if (!*pipe) return pipe->error();
  }
  ChildRequest request;
  request.executable = *std::move(path);
  request.arguments = command;
  request.environment = std::move(environment);
  request.in = std::move(in->reads);
  request.out = std::move(out->writes);
  request.err = std::move(err->writes);
  request.heritage = heritage;
  auto child = start_child(request);
  if (!child) return child.error();
  pid_ = child->pid;
  boost::system::error_code ignored;
  ended_.assign(child->pidfd.release(), ignored);
  said_.assign(err->reads.release(), ignored);
  said_.non_blocking(true, ignored);
  line_ = std::make_shared<LinkLine>(loop_, std::move(out->reads), std::move(in->writes),
                                     LinkLine::Handlers{handlers_.before, handlers_.message, handlers_.output,
                                                        [weak = weak_from_this()](std::string why) {
                                                          const auto self = weak.lock();
                                                          if (!self) return;
                                                          self->broken_ = std::move(why);
                                                          self->tell_if_broken();
                                                        }});
  line_->start();
  read_said();
  wait_for_end();
  return {};
}

void HostProcess::close() {
  told_ = true;
  handlers_ = {};
  if (line_) line_->close();
  boost::system::error_code ignored;
  said_.close(ignored);
  patience_.cancel();
  if (pid_ > 0) ::kill(-pid_, SIGTERM);  // with what it has started; reaped in wait_for_end, which keeps us
}

void HostProcess::read_said() {
  said_.async_wait(Descriptor::wait_read, [self = shared_from_this()](const boost::system::error_code& error) {
    if (error || self->told_) return;
    std::array<char, said_bytes_max> buffer;
    boost::system::error_code failed;
    const std::size_t count = self->said_.read_some(asio::buffer(buffer), failed);
    if (!failed) self->handlers_.said({buffer.data(), count});
    if (!failed || failed == asio::error::would_block) return self->read_said();
    self->said_.close(failed);
    self->tell_if_broken();
  });
}

void HostProcess::wait_for_end() {
  ended_.async_wait(Descriptor::wait_read, [self = shared_from_this()](const boost::system::error_code& error) {
    if (error) return;
    const int code = reap_child(self->pid_);
    boost::system::error_code ignored;
    self->ended_.close(ignored);
    self->pid_ = -1;
    self->exit_code_ = code < 0 ? shell_code(-code) : code;
    self->tell_if_broken();
  });
}

/// What the command has left in its pipes comes before its end, and its last words with it. Somebody else may hold
/// those, or it may live on.
void HostProcess::tell_if_broken() {
  if (told_ || (!broken_ && !exit_code_)) return;
  const bool all = broken_ && exit_code_ && !said_.is_open();
  const bool at_fault = broken_ && !broken_->empty();
  if (all || at_fault || impatient_) {
    told_ = true;
    patience_.cancel();
    return handlers_.broken(broken_.value_or(""), exit_code_);
  }
  if (std::exchange(waiting_, true)) return;
  patience_.expires_after(other_end_limit);
  patience_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (error) return;
    self->impatient_ = true;
    self->tell_if_broken();
  });
}

}  // namespace torchup
