// The driver log: the calls that read it. client/core/dispatch/driver_log.h keeps it.
#include "client/core/dispatch/driver_log.h"

#include "client/calls/handlers.h"
#include "client/calls/store.h"

namespace gpupool::client::entry {

// The driver ignores the flags of these calls.

CUresult cuLogsRegisterCallback(CUlogsCallback callbackFunc, void* userData, CUlogsCallbackHandle* callback_out) {
    return driver_log::add_callback(callbackFunc, userData, callback_out);
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle callback) {
    return driver_log::remove_callback(callback);
}

CUresult cuLogsCurrent(CUlogIterator* iterator_out, unsigned) {
    return store(iterator_out, driver_log::end());
}

CUresult cuLogsDumpToFile(CUlogIterator* iterator, const char* pathToFile, unsigned) {
    return driver_log::dump_to_file(iterator, pathToFile);
}

CUresult cuLogsDumpToMemory(CUlogIterator* iterator, char* buffer, std::size_t* size, unsigned) {
    return driver_log::dump(iterator, buffer, size);
}

}  // namespace gpupool::client::entry
