#include "server/worker/scheduling/event_record.h"

namespace gpupool::worker {

CUresult event_to_record(SessionView& session, const Command& command, CUevent client, std::size_t index,
                         const StreamState& stream, std::shared_ptr<EventState>& event) {
    if (command.ready && index < command.events.size()) {
        event = command.events[index];
        return CUDA_SUCCESS;
    }
    const auto known = session.objects.events.find(client);
    if (known == session.objects.events.end()) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    event = known->second;
    const bool stays = event->in_graph || (event->flags & CU_EVENT_INTERPROCESS) != 0;
    if ((event->waiters != 0 || event->queued_uses != 0) && !stays) {
        auto fresh = std::make_shared<EventState>();
        fresh->client = client;
        fresh->context = event->context;
        fresh->flags = event->flags;
        session.scheduler.enter(event->context);
        if (const CUresult result = driver::call(session.api.cuEventCreate, &fresh->driver, fresh->flags);
            result != CUDA_SUCCESS) {
            return result;
        }
        session.scheduler.retire(*event);
        session.handles.bind(client, fresh->driver);
        event = known->second = std::move(fresh);
    }
    event->recorded_in = stream.name();
    return CUDA_SUCCESS;
}

}  // namespace gpupool::worker
