#include "launcher/os/fan_out/host_watch.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string_view>
#include <utility>

#include "launcher/os/io/helper.hpp"
#include "launcher/os/io/regular_file.hpp"

namespace torchup {
namespace {

/// Follows what a command has printed that ended with 0, and was not cut; for a list of hosts a comment.
constexpr std::string_view whole = "\n#whole\n";
constexpr const char* with_mark = "sh -c \"$0\" && printf '\\n#whole\\n'";
constexpr const char* program_with_mark = "\"$0\" && printf '\\n#whole\\n'";

bool is_file(const std::string& source) {
  struct stat status {};
  return ::stat(source.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

/// On the thread. Errors: what is wrong, for people.
Result<std::vector<Host>> read_list(const std::string& source, Duration limit) {
  const std::string name = "--host-discovery";
  // A file that can be executed is a program, wherever the shell would look for it.
  const bool file = is_file(source), program = file && ::access(source.c_str(), X_OK) == 0;
  if (file && !program) {
    const auto content = read_regular_file(source, hostfile_bytes_max);
    if (!content) return Error{content.error().code, name + ": " + content.error().message()};
    return parse_hostfile(*content, name);
  }
  const auto answer =
      ask_helper({.executable = "/bin/sh",
                  .arguments = {"-c", program ? program_with_mark : with_mark,
                                program && source.find('/') == std::string::npos ? "./" + source : source},
                  .limit = limit,
                  .answer_bytes_max = hostfile_bytes_max});
  if (!answer) return Error{answer.error().code, name + ": " + answer.error().message()};
  if (!answer->ends_with(whole)) {
    return fail(errc::bad_value, name + (answer->size() < hostfile_bytes_max ? ": the command has failed"
                                                                             : ": the command prints too much"));
  }
  return parse_hostfile(*answer, name);
}

}  // namespace

HostWatch::HostWatch(asio::io_context& loop, HostDiscovery discovery, Handlers handlers, Duration command_limit)
    : discovery_{std::move(discovery)}, handlers_{std::move(handlers)},
      command_limit_{command_limit}, thread_{loop}, timer_{loop} {}

void HostWatch::ask() {
  thread_.call([this, post = thread_.post(), source = discovery_.source, limit = command_limit_] {
    const auto hosts = std::make_shared<Result<std::vector<Host>>>(read_list(source, limit));
    post([this, hosts] { hear(std::move(*hosts)); });
  });
}

void HostWatch::stop() {
  stopped_ = true;
  timer_.cancel();
}

void HostWatch::hear(Result<std::vector<Host>> hosts) {
  if (stopped_) return;
  if (hosts) {
    failed_ = false;
    if (*hosts != last_) handlers_.listed(last_ = *std::move(hosts));
  } else if (!std::exchange(failed_, true)) {
    handlers_.failed(hosts.error().message() + "; the last list stays");
  }
  if (stopped_) return;
  timer_.expires_after(discovery_.interval);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && !stopped_) ask();  // one that has expired cannot be cancelled any more
  });
}

}  // namespace torchup
