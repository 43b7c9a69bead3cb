#include "rendezvous/base/worker_channel.hpp"

#include <catch2/catch.hpp>

#include "rendezvous/base/worker_page.hpp"

using namespace torchup;

namespace {

template <class Word>
std::string packet_of(const Word& word) {
  const auto packet = to_packet(word);
  REQUIRE(packet.has_value());
  return *packet;
}

}  // namespace

TEST_CASE("a worker's words come through the channel", "[unit][worker_channel]") {
  for (const WorkerWord& word :
       {WorkerWord{WorkerStays{}}, WorkerWord{WorkerLeaves{}}, WorkerWord{WorkerRaised{"ValueError: a=b"}},
        WorkerWord{WorkerParked{0}}, WorkerWord{WorkerParked{1LL << 60}}, WorkerWord{WorkerLooked{0, 0}},
        WorkerWord{WorkerLooked{~0ULL, worker_answer_bytes}}}) {
    const auto read = parse_worker_word(packet_of(word));
    REQUIRE(read.has_value());
    CHECK(*read == word);
  }
}

TEST_CASE("an agent's words come through the channel", "[unit][worker_channel]") {
  for (const AgentWord& word :
       {AgentWord{RoundOver{"rank 1 was ended by signal 9"}}, AgentWord{OwnFault{}}, AgentWord{NewPlace{}},
        AgentWord{LookWanted{0}}, AgentWord{LookWanted{~0ULL}}, AgentWord{LookWanted{5, true}},
        AgentWord{NewPlace{{{"RANK", "3"}, {"MASTER_ADDR", "fe80::1%eth0"}, {"EMPTY", ""}, {"EQUALS", "a=b=c"}}}}}) {
    const auto read = parse_agent_word(packet_of(word));
    REQUIRE(read.has_value());
    CHECK(*read == word);
  }
}

TEST_CASE("the channel's packets are lines that Python can write by hand", "[unit][worker_channel]") {
  CHECK(packet_of(WorkerWord{WorkerStays{}}) == "stay\n");
  CHECK(packet_of(WorkerWord{WorkerParked{7}}) == "parked\nstep=7\n");
  CHECK(packet_of(WorkerWord{WorkerLooked{7, 512}}) == "looked\nnumber=7\nlength=512\n");
  CHECK(packet_of(AgentWord{LookWanted{7}}) == "look\nnumber=7\n");
  CHECK(packet_of(AgentWord{LookWanted{7, true}}) == "look\nnumber=7\npassing=1\n");
  CHECK(packet_of(AgentWord{RoundOver{"a node is lost"}}) == "abort\nreason=a node is lost\n");
  CHECK(packet_of(AgentWord{NewPlace{{{"RANK", "1"}, {"WORLD_SIZE", "4"}}}}) == "place\nRANK=1\nWORLD_SIZE=4\n");
}

TEST_CASE("a text for people never breaks a packet", "[unit][worker_channel]") {
  const auto raised = parse_worker_word(packet_of(WorkerWord{WorkerRaised{"two\nlines" + std::string{'\0'}}}));
  CHECK(**raised == WorkerWord{WorkerRaised{"two lines "}});
  CHECK(packet_of(WorkerWord{WorkerRaised{std::string(1 << 20, 'x')}}).size() < worker_packet_bytes_max);
  CHECK(packet_of(AgentWord{RoundOver{std::string(1 << 20, '\n')}}).size() < worker_packet_bytes_max);
}

TEST_CASE("a place that does not fit a packet is not told", "[unit][worker_channel]") {
  const auto error_of = [](const NewPlace& place) { return to_packet(AgentWord{place}).error().code; };
  CHECK(error_of({{{"LOG", "/tmp/a\nRANK=0"}}}) == errc::bad_value);
  CHECK(error_of({{{"LOG", std::string{"a\0b", 3}}}}) == errc::bad_value);
  CHECK(error_of({{{"A=B", ""}}}) == errc::bad_value);
  CHECK(error_of({{{"", ""}}}) == errc::bad_value);
  const std::string rest = "place\nA=\n";
  CHECK(packet_of(AgentWord{NewPlace{{{"A", std::string(worker_packet_bytes_max - rest.size(), 'x')}}}}).size() ==
        worker_packet_bytes_max);
  CHECK(error_of({{{"A", std::string(worker_packet_bytes_max - rest.size() + 1, 'x')}}}) == errc::limit_exceeded);
}

TEST_CASE("words of a newer side are passed over", "[unit][worker_channel]") {
  CHECK_FALSE(parse_worker_word("stacks\nof=all threads\n")->has_value());
  CHECK_FALSE(parse_agent_word("stacks\n")->has_value());
  CHECK(**parse_worker_word("parked\nsince=now\nstep=3\n") == WorkerWord{WorkerParked{3}});
  CHECK(**parse_agent_word("abort\nround=3\n") == AgentWord{RoundOver{}});
}

TEST_CASE("packets that are none end the channel", "[unit][worker_channel]") {
  for (const std::string& packet :
       {std::string{}, std::string{"stay"}, std::string{"\n"}, std::string{"sta y\n"}, std::string{"1stay\n"},
        std::string{"stay\n\n"}, std::string{"stay\nno equals\n"}, std::string{"stay\n=value\n"},
        std::string{"stay\0\n", 6}, std::string{"parked\n"}, std::string{"parked\nstep=\n"},
        std::string{"parked\nstep=-1\n"}, std::string{"parked\nstep=1x\n"},
        std::string{"parked\nstep=99999999999999999999\n"}, std::string{"looked\n"}, std::string{"looked\nnumber=1\n"},
        std::string{"looked\nlength=1\n"}, std::string{"looked\nnumber=-1\nlength=1\n"},
        std::string{"looked\nnumber=1\nlength=262145\n"}}) {
    CAPTURE(packet);
    const auto read = parse_worker_word(packet);
    REQUIRE(read.has_error());
    CHECK(read.error().code == errc::bad_frame);
  }
  CHECK(parse_agent_word("look\n").error().code == errc::bad_frame);
  CHECK(parse_agent_word("look\nnumber=18446744073709551616\n").error().code == errc::bad_frame);
  CHECK(parse_agent_word("place\nRANK=0\nRANK=1\n").error().code == errc::bad_frame);
  CHECK(parse_worker_word("stay\nA=" + std::string(worker_packet_bytes_max, 'x') + "\n").error().code ==
        errc::limit_exceeded);
}

TEST_CASE("the channel's address survives the environment", "[unit][worker_channel]") {
  const WorkerChannelAddress address{.fd = 4, .inode = 1ULL << 40, .pid = 4711};
  REQUIRE(to_text(address) == "1:4:1099511627776:4711");
  REQUIRE(*parse_worker_channel_address(to_text(address)) == address);
  for (const char* const text :
       {"", "1", "1:4:2", "1:4:2:0", "1:-1:2:3", "1:4:2:3:", "1:4:2:x", "a:4:2:3", "1:4:2:3 "}) {
    CAPTURE(text);
    CHECK(parse_worker_channel_address(text).error().code == errc::bad_value);
  }
  CHECK(parse_worker_channel_address("2:4:2:3").error().code == errc::wrong_version);
}
