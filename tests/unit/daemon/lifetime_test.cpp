// The rules by which the daemon ends a worker: every state's deadline, and every change of state.
#include "server/daemon/lifetime.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <utility>

namespace gpupool::test {
namespace {

using daemon::Config;
using daemon::Lifetime;
using daemon::WorkerEvent;
using daemon::WorkerRule;
using daemon::WorkerState;
using std::chrono::milliseconds;
using Event = WorkerEvent;
using State = WorkerState;
using Then = WorkerRule::Then;
using TimePoint = Lifetime::TimePoint;

constexpr std::array kStates = {State::introduced, State::preparing, State::ready,    State::starting,
                                State::running,    State::ending,    State::stopping, State::unreachable,
                                State::retired,    State::killed};
constexpr std::array kEvents = {Event::prepared,    Event::assigned,   Event::reported,
                                Event::reports_end, Event::stop,       Event::socket_lost,
                                Event::socket_back, Event::not_needed, Event::overdue};

class Lifetimes : public ::testing::Test {
  protected:
    Lifetimes() {
        config_.worker_start_timeout = milliseconds(30000);
        config_.worker_silence_timeout = milliseconds(20000);
        config_.worker_ending_timeout = milliseconds(900);
        config_.stop_timeout = milliseconds(3000);
    }
    [[nodiscard]] TimePoint at(int ms) const { return begin_ + milliseconds(ms); }
    [[nodiscard]] Lifetime in(State state) const { return {config_, state, begin_}; }

    Config config_;
    const TimePoint begin_{};
};

TEST_F(Lifetimes, EveryStateHasItsDeadline) {
    const std::map<State, std::pair<int, Then>> expected = {
        {State::introduced, {5000, Then::hang_up}}, {State::preparing, {30000, Then::kill}},
        {State::starting, {30000, Then::kill}},     {State::running, {20000, Then::kill}},
        {State::ending, {900, Then::kill}},         {State::stopping, {3000, Then::kill}},
        {State::unreachable, {500, Then::kill}},    {State::retired, {1000, Then::kill}},
        {State::killed, {1000, Then::kill}}};
    for (const State state : kStates) {
        const Lifetime life = in(state);
        const auto row = expected.find(state);
        if (row == expected.end()) {
            EXPECT_EQ(state, State::ready);
            EXPECT_EQ(life.deadline(), TimeSource::kNever);
            continue;
        }
        EXPECT_EQ(life.deadline(), at(row->second.first)) << static_cast<int>(state);
        EXPECT_EQ(life.rule().then, row->second.second) << static_cast<int>(state);
        EXPECT_FALSE(life.rule().why.empty());
    }
}

TEST_F(Lifetimes, EveryEventChangesTheStatesThatItConcerns) {
    // All changes; where the state stays because it has less time left, the test below says so.
    const std::map<std::pair<Event, State>, State> expected = {
        {{Event::prepared, State::preparing}, State::ready},
        {{Event::assigned, State::ready}, State::starting},
        {{Event::reported, State::starting}, State::running},
        {{Event::reports_end, State::starting}, State::ending},
        {{Event::reports_end, State::running}, State::ending},
        {{Event::reports_end, State::stopping}, State::ending},
        {{Event::stop, State::starting}, State::stopping},
        {{Event::stop, State::running}, State::stopping},
        {{Event::socket_lost, State::preparing}, State::unreachable},
        {{Event::socket_lost, State::ready}, State::unreachable},
        {{Event::socket_lost, State::starting}, State::unreachable},
        {{Event::socket_lost, State::running}, State::unreachable},
        {{Event::socket_lost, State::ending}, State::unreachable},
        {{Event::socket_lost, State::stopping}, State::unreachable},
        {{Event::socket_back, State::unreachable}, State::running},
        {{Event::not_needed, State::preparing}, State::retired},
        {{Event::not_needed, State::ready}, State::retired},
        {{Event::overdue, State::preparing}, State::killed},
        {{Event::overdue, State::ready}, State::killed},
        {{Event::overdue, State::starting}, State::killed},
        {{Event::overdue, State::running}, State::killed},
        {{Event::overdue, State::ending}, State::killed},
        {{Event::overdue, State::stopping}, State::killed},
        {{Event::overdue, State::unreachable}, State::killed},
        {{Event::overdue, State::retired}, State::retired},
        {{Event::overdue, State::killed}, State::killed}};
    for (const Event event : kEvents) {
        for (const State state : kStates) {
            Lifetime life = in(state);
            const bool changed = life.note(event, at(0));
            const auto row = expected.find({event, state});
            const auto where = testing::Message() << static_cast<int>(event) << " in " << static_cast<int>(state);
            EXPECT_EQ(changed, row != expected.end()) << where;
            EXPECT_EQ(life.state(), row == expected.end() ? state : row->second) << where;
        }
    }
}

TEST_F(Lifetimes, ReportsExtendTheTimeOfARunningWorkerOnly) {
    Lifetime running = in(State::running);
    running.note_report(at(15000));
    EXPECT_EQ(running.deadline(), at(35000));
    Lifetime ending = in(State::ending);
    ending.note_report(at(800));
    EXPECT_EQ(ending.deadline(), at(900));
}

TEST_F(Lifetimes, AWorkerThatIsToExitGetsNoMoreTime) {
    Lifetime life = in(State::running);
    EXPECT_TRUE(life.note(Event::stop, at(1000)));
    EXPECT_EQ(life.deadline(), at(4000));
    EXPECT_FALSE(life.note(Event::reports_end, at(3500))) << "4400 would be later";
    EXPECT_EQ(life.deadline(), at(4000));
    EXPECT_FALSE(life.note(Event::stop, at(3600)));
    EXPECT_TRUE(life.note(Event::socket_lost, at(3400)));
    EXPECT_EQ(life.deadline(), at(3900));
    EXPECT_FALSE(life.note(Event::socket_lost, at(3800)));
    EXPECT_TRUE(life.over());
    EXPECT_TRUE(life.note(Event::socket_back, at(3850)));
    EXPECT_FALSE(life.over());
    EXPECT_EQ(life.deadline(), at(23850));
}

TEST_F(Lifetimes, KillsAgainWhatStays) {
    for (const State state : {State::killed, State::retired}) {
        Lifetime life = in(state);
        EXPECT_TRUE(life.note(Event::overdue, at(1000)));
        EXPECT_EQ(life.state(), state);
        EXPECT_EQ(life.deadline(), at(2000));
    }
}

}  // namespace
}  // namespace gpupool::test
