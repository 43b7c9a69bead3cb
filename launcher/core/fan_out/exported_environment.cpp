#include "launcher/core/fan_out/exported_environment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "launcher/core/text/text.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

constexpr std::array<std::string_view, 17> names_here{
    "HOME", "USER",     "LOGNAME", "SHELL",      "MAIL", "PWD",       "OLDPWD",     "SHLVL",        "_",
    "TERM", "HOSTNAME", "DISPLAY", "XAUTHORITY", "STY",  "LS_COLORS", "KRB5CCNAME", "TORCHUP_TOKEN"};
constexpr std::array<std::string_view, 5> beginnings_here{"SSH_", "XDG_", "DBUS_", "TMUX", "PET_"};

std::string_view name_in(std::string_view entry) { return entry.substr(0, entry.find('=')); }

bool is_name(std::string_view text) {
  const auto fits = [](unsigned char letter) { return letter > ' ' && letter != '=' && letter != 0x7f; };
  return !text.empty() && std::ranges::all_of(text, fits);
}

}  // namespace

bool stays_here(std::string_view name) {
  const auto begins = [name](std::string_view beginning) { return name.starts_with(beginning); };
  return std::ranges::find(names_here, name) != names_here.end() || std::ranges::any_of(beginnings_here, begins);
}

Result<std::vector<std::string>> exported_environment(const std::vector<std::string>& own, std::string_view wanted) {
  std::map<std::string, std::string, std::less<>> chosen;  // by name
  const auto take_own = [&](const auto& is_wanted) {
    for (const std::string& entry : own) {
      const std::string_view name = name_in(entry);
      if (name.size() < entry.size() && is_wanted(name)) chosen.insert_or_assign(std::string{name}, entry);
    }
  };
  for (const std::string_view item : split(wanted, ',')) {
    const std::string_view name = name_in(item);
    if (item == "ALL") {
      take_own([&](std::string_view each) { return !stays_here(each) && !chosen.contains(each); });
    } else if (item == "NONE") {
      continue;
    } else if (!is_name(name)) {
      return fail(errc::bad_value,
                  fmt::format("--export: '{}' is none of ALL, NONE, NAME and NAME=VALUE", printable_start(item)));
    } else if (name.size() < item.size()) {
      chosen.insert_or_assign(std::string{name}, std::string{item});
    } else {
      take_own([name](std::string_view each) { return each == name; });
    }
  }
  std::vector<std::string> entries;
  for (auto& [name, entry] : chosen) entries.push_back(std::move(entry));
  return entries;
}

}  // namespace torchup
