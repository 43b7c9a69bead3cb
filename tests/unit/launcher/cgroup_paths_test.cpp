#include "launcher/core/machine/cgroup_paths.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

namespace {

const std::string unified_mount = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
const std::string cpu_mount = "33 32 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";

}  // namespace

TEST_CASE("our cgroup is found in the unified hierarchy", "[unit][cgroup_paths]") {
  const CgroupFolder expected{"/sys/fs/cgroup", "/sys/fs/cgroup/user.slice/job", 2};
  REQUIRE(cgroup_folder("cpu", "0::/user.slice/job\n", unified_mount) == expected);
  REQUIRE(cgroup_folder("", "0::/user.slice/job\n", unified_mount) == expected);
  REQUIRE(cgroup_folder("cpu", "0::/\n", unified_mount) == CgroupFolder{"/sys/fs/cgroup", "/sys/fs/cgroup", 2});
}

TEST_CASE("version 1 wins where it has the controller", "[unit][cgroup_paths]") {
  const std::string own = "5:memory:/m\n4:cpu,cpuacct:/a/b\n0::/u\n";
  REQUIRE(cgroup_folder("cpu", own, unified_mount + cpu_mount) ==
          CgroupFolder{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct/a/b", 1});
  // "cpuacct" must not be taken for "cpu", nor "cpu" for "cpuset".
  REQUIRE(cgroup_folder("cpu", "4:cpuset:/s\n0::/u\n", unified_mount + cpu_mount)->version == 2);
  REQUIRE(cgroup_folder("", own, unified_mount + cpu_mount)->folder == "/sys/fs/cgroup/u");
  REQUIRE_FALSE(cgroup_folder("memory", own, unified_mount + cpu_mount));
}

TEST_CASE("a mount of a part of the tree counts from that part", "[unit][cgroup_paths]") {
  const std::string part = "33 32 0:29 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
  REQUIRE(cgroup_folder("cpu", "0::/docker/abc/x\n", part)->folder == "/sys/fs/cgroup/x");
  REQUIRE(cgroup_folder("cpu", "0::/docker/abc\n", part)->folder == "/sys/fs/cgroup");
  REQUIRE_FALSE(cgroup_folder("cpu", "0::/docker/abcd\n", part));
}

TEST_CASE("blanks in mount points are written as octal numbers", "[unit][cgroup_paths]") {
  const std::string odd = "30 23 0:26 / /mnt/c\\040group rw - cgroup2 none rw\n";
  REQUIRE(cgroup_folder("", "0::/x\n", odd)->folder == "/mnt/c group/x");
}

TEST_CASE("no cgroups, or unreadable files", "[unit][cgroup_paths]") {
  REQUIRE_FALSE(cgroup_folder("cpu", "", unified_mount));
  REQUIRE_FALSE(cgroup_folder("cpu", "0::/x\n", ""));
  REQUIRE_FALSE(cgroup_folder("cpu", "nonsense\n::\n", "a b c\n- cgroup2\n"));
}
