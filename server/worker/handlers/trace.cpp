// Tracing a session (tracer.h): its start by the client, the session's clock, and the final flush.

#include "server/worker/handlers/handlers.h"

namespace gpupool::worker::handlers {

Outcome gpTraceStart(SessionView& session, Command&, codec::Slots<calls::gpTraceStart>&) {
    // Each traced operation takes three places in the driver's queue: itself and two events.
    session.scheduler.limit_credit(Scheduler::kCredit / 3);
    session.tracer.start();
    return CUDA_SUCCESS;
}

Outcome gpTraceClock(SessionView& session, Command&, codec::Slots<calls::gpTraceClock>& slots) {
    slots.at<calls::gpTraceClock::now_ns>().object = session.tracer.now_ns();
    return CUDA_SUCCESS;
}

Outcome gpTraceFlush(SessionView& session, Command& command, codec::Slots<calls::gpTraceFlush>&) {
    session.tracer.flush([&session, command] { session.answers.give(command, CUDA_SUCCESS); });
    return Outcome::answered();
}

}  // namespace gpupool::worker::handlers
