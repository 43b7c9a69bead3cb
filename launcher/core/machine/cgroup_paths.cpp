#include "launcher/core/machine/cgroup_paths.hpp"

#include <algorithm>
#include <vector>

#include "launcher/core/text/text.hpp"

namespace torchup {
namespace {

bool has(std::string_view comma_list, std::string_view word) {
  const auto words = split(comma_list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// mountinfo writes blanks, newlines and backslashes as three octal digits.
std::string unescaped(std::string_view text) {
  std::string plain;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool code =
        text[at] == '\\' && at + 3 < text.size() &&
        std::all_of(text.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                    text.begin() + static_cast<std::ptrdiff_t>(at) + 4, [](char c) { return c >= '0' && c <= '7'; });
    if (!code) {
      plain += text[at];
      continue;
    }
    plain += static_cast<char>((text[at + 1] - '0') * 64 + (text[at + 2] - '0') * 8 + (text[at + 3] - '0'));
    at += 3;
  }
  return plain;
}

struct Membership {
  std::string path;  ///< "/user.slice/…", as /proc/self/cgroup shows it
  int version;
};

std::optional<Membership> membership(std::string_view controller, std::string_view proc_self_cgroup) {
  std::optional<Membership> unified;
  for (const std::string_view line : split(proc_self_cgroup, '\n')) {  // "4:cpu,cpuacct:/a/b", "0::/a/b"
    const auto first = line.find(':');
    const auto second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string path{line.substr(second + 1)};
    if (line.substr(0, first) == "0" && controllers.empty())
      unified = Membership{path, 2};
    else if (!controller.empty() && has(controllers, controller))
      return Membership{path, 1};
  }
  return unified;
}

/// `path` below `root`, with a leading slash or empty; nothing when it lies elsewhere.
std::optional<std::string> below(const std::string& path, const std::string& root) {
  if (root == "/") return path == "/" ? "" : path;
  if (path == root) return "";
  if (path.starts_with(root + "/")) return path.substr(root.size());
  return std::nullopt;
}

}  // namespace

std::optional<CgroupFolder> cgroup_folder(std::string_view controller, std::string_view proc_self_cgroup,
                                          std::string_view mountinfo) {
  const std::optional<Membership> own = membership(controller, proc_self_cgroup);
  if (!own) return std::nullopt;
  for (const std::string_view line : split(mountinfo, '\n')) {
    // "36 35 0:29 /root /mount options tags... - type source super-options"
    const std::vector<std::string_view> fields = split(line, ' ');
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 6 || fields.end() - dash < 4) continue;
    const bool wanted = own->version == 2 ? dash[1] == "cgroup2" : dash[1] == "cgroup" && has(dash[3], controller);
    if (!wanted) continue;
    const std::optional<std::string> rest = below(own->path, unescaped(fields[3]));
    if (!rest) continue;
    const std::string mount = unescaped(fields[4]);
    return CgroupFolder{mount, mount + *rest, own->version};
  }
  return std::nullopt;
}

}  // namespace torchup
