// Tracing a session (tracer.h): its start by the client, the worker's clock, and the final flush.

#include "server/worker/dispatch/serve.h"

namespace gpupool::worker::handlers {

Outcome gpTraceStart(Worker& worker, Command&, codec::Slots<calls::gpTraceStart>&) {
    // Each traced operation takes three places in the driver's queue: itself and two events.
    worker.scheduler.limit_credit(Scheduler::kCredit / 3);
    worker.tracer.start();
    return CUDA_SUCCESS;
}

Outcome gpTraceClock(Worker& worker, Command&, codec::Slots<calls::gpTraceClock>& slots) {
    slots.at<calls::gpTraceClock::now_ns>().object = worker.tracer.now_ns();
    return CUDA_SUCCESS;
}

Outcome gpTraceFlush(Worker& worker, Command& command, codec::Slots<calls::gpTraceFlush>&) {
    worker.tracer.flush([&worker, command] { worker.answer(command, CUDA_SUCCESS); });
    return Outcome::answered();
}

}  // namespace gpupool::worker::handlers
