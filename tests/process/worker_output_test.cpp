// Which way a worker's bytes go.

#include "tests/support/output_job.hpp"

using namespace torchup;
using namespace torchup::output_test;
using namespace std::chrono_literals;

TEST_CASE("without redirects bytes pass unchanged", "[process][output]") {
  Job job;
  job.commands = {R"(printf 'a\r\n\377b'; printf 'err' >&2)"};
  job.run();
  CHECK(job.out ==
        "a\r\n\xff"
        "b");
  CHECK(job.err == "err");
  CHECK(job.told.empty());
  INFO(job.run_directory);
  CHECK_FALSE(job.run_directory.empty());
  CHECK_FALSE(fs::exists(job.run_directory));  // nothing was written in the temporary log directory
}

TEST_CASE("all workers have our own stdin", "[process][output]") {
  test::TemporaryFolder scratch;
  std::ofstream{scratch.path / "in"} << "typed\n";
  UniqueFd in{::open((scratch.path / "in").c_str(), O_RDONLY | O_CLOEXEC)};
  const Replaced new_in{STDIN_FILENO, in.get()};
  Job several;
  several.commands = {"readlink /proc/self/fd/0", "readlink /proc/self/fd/0"};
  several.run();
  const std::string line = (scratch.path / "in").string() + "\n";
  CHECK(several.out == line + line);
  Job alone;
  alone.commands = {"cat"};
  alone.run();
  CHECK(alone.out == "typed\n");
}

TEST_CASE("streams that go to different places are kept apart", "[process][output]") {
  Job job;
  job.options.log_dir = job.log_dir();
  job.options.tee = "3";
  job.commands = {"echo out; echo err >&2"};
  UniqueFd file = create(job.scratch.path / "both");
  job.run_on(file.get(), file.get());
  CHECK(sorted_lines(content(job.scratch.path / "both")) ==
        std::vector<std::string>{"[default0]:err", "[default0]:out"});
  CHECK(content(job.files[0].stdout_log) == "out\n");
  CHECK(content(job.files[0].stderr_log) == "err\n");
}

TEST_CASE("tee writes files byte for byte and prefixes the console", "[process][output]") {
  Job job;
  job.options.log_dir = job.log_dir();
  job.options.tee = "3";
  job.commands = {R"(printf 'abc'; sleep 0.1; printf 'def\n\377'; printf 'e\n' >&2)", R"(echo one; echo two >&2)"};
  job.run();
  CHECK(sorted_lines(job.out) == std::vector<std::string>{"[default0]:abcdef", "[default0]:\uFFFD", "[default1]:one"});
  CHECK(sorted_lines(job.err) == std::vector<std::string>{"[default0]:e", "[default1]:two"});
  CHECK(content(job.files[0].stdout_log) == "abcdef\n\xff");
  CHECK(content(job.files[1].stderr_log) == "two\n");
  const std::string& run = job.run_directory;
  CHECK(fs::path{run}.parent_path() == job.log_dir());
  CHECK(fs::path{run}.filename().string().starts_with("run_1_"));
  CHECK((fs::status(run).permissions() & fs::perms::all) == fs::perms::owner_all);
  CHECK(job.files[1].stdout_log == run + "/attempt_0/1/stdout.log");
  CHECK(job.files[1].error_file == run + "/attempt_0/1/error.json");
}

TEST_CASE("redirects write files only, the rank filter hides", "[process][output]") {
  Job job;
  job.options.log_dir = job.log_dir();
  job.options.redirects = "1";
  job.options.local_ranks_filter = "1";
  job.commands = {"echo out0; echo err0 >&2", "echo out1; echo err1 >&2"};
  job.run();
  CHECK(job.out.empty());
  CHECK(job.err == "err1\n");
  CHECK(content(job.files[0].stdout_log) == "out0\n");
  CHECK(job.files[0].stderr_log.empty());
  CHECK(job.tails[0].size() == 2);  // hidden, and yet there when the worker's death is to be explained
}

TEST_CASE("duplicate filters collect lines of all teed streams", "[process][output]") {
  Job job;
  job.options.log_dir = job.log_dir();
  job.options.tee = "1";
  job.options.duplicate_stdout_filters = {"apple"};
  job.options.duplicate_stderr_filters = {"apple"};
  job.commands = {"echo an apple; echo pear; echo apple >&2", "echo apple 1"};
  job.run();
  CHECK(sorted_lines(content(job.run_directory + "/attempt_0/filtered_stdout.log")) ==
        std::vector<std::string>{"[default0]:an apple", "[default1]:apple 1"});
  CHECK(fs::exists(job.run_directory + "/attempt_0/filtered_stderr.log"));
  CHECK(content(job.run_directory + "/attempt_0/filtered_stderr.log").empty());  // stderr is not teed
}

TEST_CASE("every attempt has files of its own", "[process][output]") {
  Job job;
  job.options.log_dir = job.log_dir();
  job.options.redirects = "1";
  job.attempts = 3;
  job.commands = {"echo x"};
  job.run();
  for (const char* attempt : {"attempt_0", "attempt_1", "attempt_2"})
    CHECK(content(job.run_directory + "/" + attempt + "/0/stdout.log") == "x\n");
}

TEST_CASE("a worker may close its output", "[process][output]") {
  Job job;
  job.commands = {"echo a; exec >&-; exec 2>&-; sleep 0.1", "echo b"};
  job.run();
  CHECK(sorted_lines(job.out) == std::vector<std::string>{"a", "b"});
}

TEST_CASE("without capture workers write to our own streams", "[process][output]") {
  Job job;
  job.options.capture = false;
  job.options.redirects = "1:1";
  job.options.log_dir = job.log_dir();
  job.commands = {"readlink /proc/self/fd/1", "readlink /proc/self/fd/1"};
  job.run();
  CHECK(job.out == (job.scratch.path / "out").string() + "\n");
  CHECK(content(job.files[1].stdout_log).starts_with("pipe:"));
}

TEST_CASE("with the null device as log directory there are no files", "[process][output]") {
  Job job;
  job.options.log_dir = "/dev/null";
  job.options.tee = "3";
  job.commands = {"echo a"};
  job.run();
  CHECK(job.out == "a\n");
  CHECK(job.run_directory.empty());
  CHECK(job.files[0].error_file.empty());
}
