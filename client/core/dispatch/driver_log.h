// The driver log: what failed calls say, for cuLogs* and CUDA_LOG_FILE. It is the client's, because the client answers
// the calls; the texts are the driver's.
//
// An iterator is the number of an entry, counted from the process's first one.
//
// Ownership: global state, never destroyed. The newest kMostEntries are kept.
// Threads: any. Callbacks run in the thread whose call failed, without a lock; calls that fail in them call them again.
// Errors: CUresult.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/calls/cuda_api.h"

namespace gpupool::client::driver_log {

inline constexpr std::size_t kMostEntries = 100;  // as the driver

// Notes that an entry point returned an error. CUDA_ERROR_NOT_READY is an answer, and before cuInit there is no log.
void note_failure(std::uint16_t opcode, CUresult result) noexcept;

CUresult add_callback(CUlogsCallback function, void* data, CUlogsCallbackHandle* handle);
CUresult remove_callback(CUlogsCallbackHandle handle);
// The number that the next entry gets.
CUlogIterator end();
// Copies the entries from `from` on, or all of them, as text with a zero byte behind it, and moves `from` behind them.
CUresult dump(CUlogIterator* from, char* buffer, std::size_t* bytes);
CUresult dump_to_file(CUlogIterator* from, const char* path);

// A forked child begins with an empty log.
void after_fork_in_child() noexcept;

}  // namespace gpupool::client::driver_log
