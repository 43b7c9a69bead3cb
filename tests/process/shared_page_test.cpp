#include "launcher/os/io/shared_page.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "launcher/os/worker/hook_folder.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace torchup;

TEST_CASE("the memory of a worker has its size, and nobody can change that", "[process][shared_page]") {
  const SharedPage page = *SharedPage::make();
  struct stat status {};
  REQUIRE(::fstat(page.fd(), &status) == 0);
  CHECK(status.st_size == 528'384);
  constexpr int seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW;
  CHECK((::fcntl(page.fd(), F_GET_SEALS) & seals) == seals);
  CHECK(::ftruncate(page.fd(), 4096) != 0);
  CHECK(::ftruncate(page.fd(), 1 << 20) != 0);
}

TEST_CASE("what a worker writes at the shared offset lies on the sheet, and is wiped from it",
          "[process][shared_page]") {
  const SharedPage page = *SharedPage::make();
  const UniqueFd workers{::fcntl(page.fd(), F_DUPFD_CLOEXEC, 0)};  // has the same offset, as one that is inherited
  const auto writes = [&](const std::string& text) {
    return ::write(workers.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  };
  REQUIRE(writes("Fatal Python error: Aborted\n"));
  CHECK(read_sheet(page.fd()) == "Fatal Python error: Aborted\n");
  CHECK_FALSE(page.hook());  // the page in front of it is untouched
  wipe_sheet(page.fd());
  CHECK(read_sheet(page.fd()).empty());
  REQUIRE(writes("again\n"));
  CHECK(read_sheet(page.fd()) == "again\n");
  SECTION("as much as there is room for") {
    const std::string much(worker_sheet_bytes, 'x');
    REQUIRE(::pwrite(workers.get(), much.data(), much.size(), worker_sheet_at) == static_cast<ssize_t>(much.size()));
    CHECK(read_sheet(page.fd()).size() == worker_sheet_bytes);
    CHECK(read_answer(page.fd(), 3) == std::string(3, '\0'));
  }
  SECTION("an answer lies behind it, and is read no further than it goes") {
    REQUIRE(::pwrite(workers.get(), "{}", 2, worker_answer_at) == 2);
    CHECK(read_answer(page.fd(), 2) == "{}");
    CHECK(read_answer(page.fd(), worker_memory_bytes).size() == worker_answer_bytes);
  }
}

TEST_CASE("what a link in the place of the hook's folder leads to is left alone", "[process][hook]") {
  namespace fs = std::filesystem;
  const test::TemporaryFolder elsewhere;
  const fs::path file = elsewhere.path / "sitecustomize.py";
  std::ofstream{file} << "the user's own";
  fs::path directory;
  {
    auto made = HookFolder::make();
    if (!made) return;  // /dev/shm is no memory here
    const HookFolder hook = *std::move(made);
    directory = fs::path{hook.path()}.parent_path();
    fs::remove_all(hook.path());
    fs::create_directory_symlink(elsewhere.path, hook.path());
  }
  CHECK(fs::exists(file));
  CHECK_FALSE(fs::exists(directory));
}

TEST_CASE("the hook's folder holds what was embedded, and goes with who made it", "[process][hook]") {
  namespace fs = std::filesystem;
  const test::TemporaryFolder elsewhere;
  std::string path;
  std::ptrdiff_t others = 0;
  {
    auto made = HookFolder::make();
    if (!made) return;  // /dev/shm is no memory here
    const HookFolder hook = *std::move(made);
    path = hook.path();
    CHECK(fs::status(path).permissions() == fs::perms::owner_all);
    CHECK(fs::status(fs::path{path}.parent_path()).permissions() == fs::perms::owner_all);
    const fs::path source{TORCHUP_INJECTED};
    int files = 0;
    for (const auto& entry : fs::directory_iterator{source}) {
      const std::string name = entry.path().filename().string();
      if (name == "template.py" || !name.ends_with(".py")) continue;
      const auto content = [](const fs::path& file) {
        std::ifstream in{file};
        return std::string{std::istreambuf_iterator<char>{in}, {}};
      };
      CAPTURE(name);
      CHECK(content(path + "/" + name) == content(entry.path()));
      ++files;
    }
    const bool has_bytecode = fs::exists(path + "/__pycache__");  // there was a Python to make it
    CHECK(files + has_bytecode == std::distance(fs::directory_iterator{path}, fs::directory_iterator{}));
    SECTION("and nothing else") {}
    SECTION("and what workers have put there") { fs::create_directories(path + "/__pycache__/more"); }
    SECTION("and a link in the bytecode's place, which leads to what is another's") {
      if (has_bytecode) fs::copy(path + "/__pycache__", elsewhere.path);
      others = std::distance(fs::directory_iterator{elsewhere.path}, fs::directory_iterator{});
      fs::remove_all(path + "/__pycache__");
      fs::create_directory_symlink(elsewhere.path, path + "/__pycache__");
    }
  }
  CHECK_FALSE(fs::exists(fs::path{path}.parent_path()));
  CHECK(others == std::distance(fs::directory_iterator{elsewhere.path}, fs::directory_iterator{}));
}
