// StreamClock by itself: which epochs are done, and which of them another stream may use.
#include "pages/stream_clock.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

namespace cachalot {
namespace {

constexpr std::uint32_t kLastEpoch = ~std::uint32_t{0};  // the next is 0

Event event_number(std::uintptr_t number) { return reinterpret_cast<Event>(number); }

StreamClock clock_number(std::uintptr_t number) {
  return StreamClock(immortal_stream(reinterpret_cast<Stream>(number)));
}

// An event behind all that was freed so far.
std::uint32_t record(StreamClock& clock, std::uintptr_t number) {
  const std::uint32_t epoch = clock.end_epoch();
  clock.recorded(event_number(number), epoch);
  return epoch;
}

void expect_reach(const Reach& reach, std::uint32_t epoch) {
  EXPECT_EQ(reach.kind, Reach::Kind::until);
  EXPECT_EQ(reach.epoch, epoch);
}

TEST(AStreamClock, EndsAnEpochWithEachEvent) {
  StreamClock clock = clock_number(7);
  EXPECT_EQ(clock.stream(), immortal_stream(reinterpret_cast<Stream>(7)));
  const std::uint32_t first = clock.epoch();
  EXPECT_EQ(clock.epoch_of_frees(), first);
  EXPECT_FALSE(clock.is_done(first)) << "nobody has waited for it";
  EXPECT_TRUE(clock.is_done(first - 1)) << "there was nothing";
  EXPECT_EQ(record(clock, 1), first);
  EXPECT_EQ(clock.epoch(), first + 1);
  EXPECT_EQ(clock.epoch_of_frees(), first + 1);
}

TEST(AStreamClock, IsDoneUpToTheNewestEventThatWasSeenToFinish) {
  StreamClock clock = clock_number(1);
  EXPECT_FALSE(clock.has_events());
  const std::uint32_t first = record(clock, 1);
  const std::uint32_t second = record(clock, 2);
  EXPECT_EQ(clock.events(), 2u);
  EXPECT_EQ(clock.oldest_event(), event_number(1));
  EXPECT_FALSE(clock.is_done(first));
  EXPECT_EQ(clock.oldest_is_done(), event_number(1));
  EXPECT_TRUE(clock.is_done(first));
  EXPECT_FALSE(clock.is_done(second));
  EXPECT_EQ(clock.oldest_is_done(), event_number(2));
  EXPECT_TRUE(clock.is_done(second));
  EXPECT_FALSE(clock.is_done(clock.epoch()));
  EXPECT_FALSE(clock.has_events());
}

TEST(AStreamClock, FindsTheEarliestEventBehindAnEpoch) {
  StreamClock clock = clock_number(1);
  const std::uint32_t unmarked = clock.end_epoch();  // the device refused to record its event
  const std::uint32_t first = record(clock, 1);
  const std::uint32_t second = record(clock, 2);
  EXPECT_EQ(clock.earliest_covering(unmarked).event, event_number(1));
  EXPECT_EQ(clock.earliest_covering(first).event, event_number(1));
  EXPECT_EQ(clock.earliest_covering(first).epoch, first);
  EXPECT_EQ(clock.earliest_covering(second).event, event_number(2));
  EXPECT_EQ(clock.earliest_covering(second).epoch, second);
}

TEST(AStreamClock, IsDoneWithAllThatTheHostHasWaitedFor) {
  StreamClock clock = clock_number(1);
  const std::uint32_t first = clock.end_epoch();
  const std::uint32_t second = clock.end_epoch();
  clock.everything_is_done(second);
  EXPECT_TRUE(clock.is_done(first));
  EXPECT_TRUE(clock.is_done(second));
  EXPECT_FALSE(clock.is_done(clock.epoch())) << "freed while the host waited";
}

TEST(AStreamClock, TellsEpochsApartWhereTheyWrapAround) {
  StreamClock clock = clock_number(1);
  clock.everything_is_done(kLastEpoch);
  EXPECT_TRUE(clock.is_done(kLastEpoch));
  EXPECT_TRUE(clock.is_done(kLastEpoch - 5));
  EXPECT_FALSE(clock.is_done(0));
  clock.recorded(event_number(1), kLastEpoch);
  clock.recorded(event_number(2), 1);
  EXPECT_EQ(clock.earliest_covering(kLastEpoch).event, event_number(1));
  EXPECT_EQ(clock.earliest_covering(0).event, event_number(2));
  clock.oldest_is_done();
  clock.oldest_is_done();
  EXPECT_TRUE(clock.is_done(kLastEpoch));
  EXPECT_TRUE(clock.is_done(1));
  EXPECT_FALSE(clock.is_done(2));
}

TEST(ATicket, IsDoneWithTheEpochOfItsClock) {
  StreamClock clock = clock_number(1);
  const Ticket ticket{&clock, record(clock, 1)};
  const Ticket later{&clock, clock.epoch()};
  EXPECT_FALSE(ticket.is_done());
  clock.oldest_is_done();
  EXPECT_TRUE(ticket.is_done());
  EXPECT_FALSE(later.is_done());
}

// --- memory that other streams may use -------------------------------------------------------------------------------

TEST(AStreamsReach, IsWhatTheHostHasSeenDone) {
  const StreamClock clock = clock_number(1);
  StreamClock other = clock_number(2);
  const std::uint32_t first = record(other, 1);
  expect_reach(clock.reach_into(other), first - 1);
  other.oldest_is_done();
  expect_reach(clock.reach_into(other), first);
}

TEST(AStreamsReach, IsWhatItHasWaitedFor) {
  StreamClock clock = clock_number(1);
  const StreamClock third = clock_number(3);
  StreamClock other = clock_number(2);
  const std::uint32_t first = record(other, 1);
  const std::uint32_t second = record(other, 2);
  clock.waits_for(other, first);
  expect_reach(clock.reach_into(other), first);
  clock.waits_for(other, second);
  expect_reach(clock.reach_into(other), second);
  expect_reach(third.reach_into(other), first - 1);
  expect_reach(clock.reach_into(third), 0);
  other.oldest_is_done();
  expect_reach(clock.reach_into(other), second);
}

TEST(AStreamsReach, GoesOnWithWhatIsDoneBeyondAWait) {
  for (const std::uint32_t waited : {std::uint32_t{1}, kLastEpoch - 1}) {
    SCOPED_TRACE(waited);
    StreamClock clock = clock_number(1);
    StreamClock other = clock_number(2);
    other.everything_is_done(waited - 1);
    clock.waits_for(other, waited);
    expect_reach(clock.reach_into(other), waited);
    other.everything_is_done(waited);
    expect_reach(clock.reach_into(other), waited);
    other.everything_is_done(waited + 3);  // of the second: 1
    expect_reach(clock.reach_into(other), waited + 3);
    EXPECT_TRUE(clock.reach_into(other).covers(waited + 2));
    EXPECT_FALSE(clock.reach_into(other).covers(waited + 4));
  }
}

// From 2^31 epochs on, a wait that is past looks like one to come.
TEST(AStreamsReach, IsWhatIsDoneHoweverManyEpochsCameAfterAWait) {
  StreamClock clock = clock_number(1);
  StreamClock other = clock_number(2);
  clock.waits_for(other, 7);
  expect_reach(clock.reach_into(other), 7);
  std::uint32_t done = 7;
  for (int i = 0; i < 9; ++i) {
    done += (std::uint32_t{1} << 30) + 1;
    other.everything_is_done(done);
    expect_reach(clock.reach_into(other), done);
  }
}

TEST(AStreamsReach, ByWaitingIsUpToTheEventsBeforeTheRequest) {
  const StreamClock clock = clock_number(1);
  StreamClock other = clock_number(2);
  record(other, 1);
  const std::uint32_t second = record(other, 2);
  expect_reach(clock.reach_by_waiting(other), 0);  // no request has come
  other.request_comes();
  record(other, 3);
  expect_reach(clock.reach_by_waiting(other), second);
  expect_reach(clock.reach_into(other), 0);
  other.request_comes();
  expect_reach(clock.reach_by_waiting(other), second + 1);
}

TEST(AStreamsReach, ByWaitingIsNotLessThanWithoutAWait) {
  StreamClock clock = clock_number(1);
  StreamClock other = clock_number(2);
  const std::uint32_t first = record(other, 1);
  other.request_comes();
  const std::uint32_t second = record(other, 2);
  clock.waits_for(other, second);  // for another request
  expect_reach(clock.reach_by_waiting(other), second);
  other.oldest_is_done();
  other.oldest_is_done();
  const std::uint32_t third = record(other, 3);
  other.oldest_is_done();
  EXPECT_EQ(third, first + 2);
  expect_reach(clock.reach_by_waiting(other), third);
}

TEST(AStreamsReach, ByWaitingIsWhatIsDoneWhereThereIsNoEvent) {
  const StreamClock clock = clock_number(1);
  StreamClock other = clock_number(2);
  const std::uint32_t first = record(other, 1);
  other.oldest_is_done();
  other.request_comes();
  record(other, 2);  // for the request
  expect_reach(clock.reach_by_waiting(other), first);
}

TEST(AStreamsReach, ByWaitingWrapsAroundAsEpochsDo) {
  const StreamClock clock = clock_number(1);
  StreamClock other = clock_number(2);
  other.everything_is_done(kLastEpoch - 1);
  other.recorded(event_number(1), kLastEpoch);
  other.recorded(event_number(2), 1);
  other.request_comes();
  expect_reach(clock.reach_by_waiting(other), 1);
  StreamClock busy = clock_number(3);
  busy.everything_is_done(kLastEpoch / 2 + 9);  // no request has come for more than half of all epochs
  busy.request_comes();
  expect_reach(clock.reach_by_waiting(busy), kLastEpoch / 2 + 9);
}

// --- streams that end ------------------------------------------------------------------------------------------------

TEST(AStreamClock, KeepsItsLastEpochForWhatIsFreedAfterTheEnd) {
  StreamClock clock = clock_number(1);
  record(clock, 1);
  const std::uint32_t last = clock.epoch();
  EXPECT_FALSE(clock.has_ended());
  clock.recorded(event_number(2), last);
  clock.end();
  EXPECT_TRUE(clock.has_ended());
  EXPECT_EQ(clock.epoch(), last + 1);
  EXPECT_EQ(clock.epoch_of_frees(), last);
  clock.end();
  EXPECT_EQ(clock.epoch(), last + 1);
  EXPECT_EQ(clock.epoch_of_frees(), last);
  clock.oldest_is_done();
  clock.oldest_is_done();
  EXPECT_TRUE(clock.is_done(clock.epoch_of_frees())) << "no work comes after the event of the end";
}

// The next clock may have the address of the one that went.
TEST(AStreamsReach, IntoAClockThatTookAnothersPlaceDoesNotKnowTheOthersWaits) {
  StreamClock clock = clock_number(1);
  const StreamClock third = clock_number(3);
  std::optional<StreamClock> other(clock_number(2));
  clock.waits_for(third, 4);
  clock.waits_for(*other, 9);
  clock.forget(*other);
  other.emplace(immortal_stream(reinterpret_cast<Stream>(4)));
  expect_reach(clock.reach_into(*other), 0);
  expect_reach(clock.reach_into(third), 4);
}

}  // namespace
}  // namespace cachalot
