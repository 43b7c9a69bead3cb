#include "launcher/core/fan_out/exported_environment.hpp"

#include <catch2/catch.hpp>

using namespace torchup;
using Words = std::vector<std::string>;

namespace {

const Words own{"B=2", "A=1", "HOME=/home/me", "SSH_CONNECTION=x", "PET_HOSTS=a", "TORCHUP_TOKEN=secret", "EMPTY="};

}  // namespace

TEST_CASE("the environment goes but for what is of this login", "[unit][fan_out]") {
  REQUIRE(exported_environment(own, "ALL").value() == Words{"A=1", "B=2", "EMPTY="});
  for (const char* name :
       {"USER", "LOGNAME", "SHELL", "MAIL", "PWD", "OLDPWD", "SHLVL", "_", "TERM", "HOSTNAME", "DISPLAY", "XAUTHORITY",
        "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "TMUX", "TMUX_PANE", "STY", "LS_COLORS", "KRB5CCNAME"}) {
    REQUIRE(stays_here(name));
  }
  for (const char* name : {"PATH", "HOMES", "LD_LIBRARY_PATH", "NCCL_DEBUG", "TERMINFO"})
    REQUIRE_FALSE(stays_here(name));
}

TEST_CASE("what of the environment goes can be chosen", "[unit][fan_out]") {
  REQUIRE(exported_environment(own, "NONE").value().empty());
  REQUIRE(exported_environment(own, "NONE,A,C=3").value() == Words{"A=1", "C=3"});
  REQUIRE(exported_environment(own, "A").value() == Words{"A=1"});
  REQUIRE(exported_environment(own, "ALL,A=9,HOME").value() == Words{"A=9", "B=2", "EMPTY=", "HOME=/home/me"});
  REQUIRE(exported_environment(own, "A=9,ALL").value() == Words{"A=9", "B=2", "EMPTY="});
  REQUIRE(exported_environment(own, "NONE,MISSING").value().empty());
  for (const char* wrong : {"", "A,,B", "=x", "two words"}) REQUIRE(exported_environment(own, wrong).has_error());
}
