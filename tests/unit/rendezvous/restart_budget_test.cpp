#include "rendezvous/core/membership/restart_budget.hpp"

#include <catch2/catch.hpp>
#include <limits>

using namespace torchup;
using namespace std::chrono_literals;

TEST_CASE("restarts are spent until none is left", "[unit][restart_budget]") {
  const JobTerms terms{.max_restarts = 2};
  const TimePoint t0{};
  RestartBudget budget;
  REQUIRE(budget.spend(terms, t0));
  REQUIRE(budget.spend(terms, t0 + 1s));
  REQUIRE_FALSE(budget.spend(terms, t0 + 1000h));
  REQUIRE(budget.count() == 2);
  budget.give_back();
  REQUIRE(budget.count() == 1);
  REQUIRE(budget.spend(terms, t0 + 1000h));
}

TEST_CASE("restarts that are older than the window count no more", "[unit][restart_budget]") {
  const JobTerms terms{.max_restarts = 2, .restart_window = 10s};
  const TimePoint t0{};
  RestartBudget budget;
  REQUIRE(budget.spend(terms, t0));
  REQUIRE(budget.spend(terms, t0 + 4s));
  REQUIRE(budget.used(terms, t0 + 10s - 1ns) == 2);
  REQUIRE_FALSE(budget.spend(terms, t0 + 10s - 1ns));
  REQUIRE(budget.used(terms, t0 + 10s) == 1);
  REQUIRE(budget.spend(terms, t0 + 10s));
  REQUIRE(budget.count() == 3);
}

TEST_CASE("restarts without a window cost no memory, however many there are", "[unit][restart_budget]") {
  const JobTerms terms{.max_restarts = 1000};
  RestartBudget budget;
  TimePoint now{};
  for (int restart = 0; restart < 1000; ++restart) REQUIRE(budget.spend(terms, now += 1s));
  REQUIRE(budget.spent(now) == std::vector<JobSnapshot::Restarts>{{0s, 1000}});
  REQUIRE_FALSE(budget.spend(terms, now));
  budget.give_back();
  REQUIRE(budget.used(terms, now) == 999);
  for (int restart = 0; restart < 999; ++restart) budget.give_back();
  REQUIRE(budget.spent(now).empty());
  REQUIRE(budget.count() == 0);
}

TEST_CASE("what another life counted uses up the budget too, and costs no memory", "[unit][restart_budget]") {
  JobTerms terms{.max_restarts = 3};
  const TimePoint t0{};
  RestartBudget budget;
  budget.learn(2, t0);
  budget.learn(2, t0 + 1s);
  budget.learn(1, t0 + 1s);
  REQUIRE(budget.count() == 2);
  REQUIRE(budget.spend(terms, t0 + 2s));
  REQUIRE_FALSE(budget.spend(terms, t0 + 2s));
  budget.learn(std::numeric_limits<int>::max(), t0 + 3s);
  REQUIRE(budget.count() == restarts_max);
  REQUIRE(budget.spent(t0 + 4s) == std::vector<JobSnapshot::Restarts>{{2s, 3}, {1s, restarts_max - 3}});
  terms.max_restarts = restarts_max;
  REQUIRE_FALSE(budget.spend(terms, t0 + 4s));
  JobSnapshot saved;
  saved.restart_count = budget.count();
  saved.restarts = budget.spent(t0 + 4s);
  REQUIRE(RestartBudget{saved, t0 + 9s}.spent(t0 + 9s) == saved.restarts);
}
