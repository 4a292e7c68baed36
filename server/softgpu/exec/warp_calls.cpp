// Calls: frames, parameters, and the functions that the driver provides to kernels.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "server/softgpu/exec/block_runner.h"
#include "server/softgpu/exec/device_heap.h"

namespace gpupool::softgpu {
namespace {

constexpr std::uint32_t kMaxCallDepth = 8192;

std::uint8_t* area(const Frame& frame, std::uint32_t lane) {
    return frame.registers + frame.function->register_bytes + std::size_t{lane} * frame.function->area_stride_bytes;
}

// Address of a parameter in the called function.
std::uint8_t* formal(const Warp& w, const Frame& frame, const ParamInfo& param, std::uint32_t lane) {
    if (!param.local) {
        return area(frame, lane) + param.offset_bytes;
    }
    return w.local + std::size_t{lane} * w.local_stride_bytes + frame.local_base_bytes + param.offset_bytes;
}

}  // namespace

bool BlockRunner::call(Warp& w, const Inst& i, std::uint32_t lanes) {
    const CallSite& site = w.current.frame->function->calls[i.extra];
    if (site.callee < 0) {
        return call_indirect(w, i, site, lanes);
    }
    if (site.builtin != Builtin::none) {
        if (!builtin(w, i, site, lanes)) {
            return false;
        }
        ++w.current.position;
        return true;
    }
    return enter(w, i, site, (*launch_.functions)[static_cast<std::size_t>(site.callee)], lanes);
}

// Lanes may call different functions: each function is entered by its own group.
bool BlockRunner::call_indirect(Warp& w, const Inst& i, const CallSite& site, std::uint32_t lanes) {
    const auto* pointers = w.reg<std::uint64_t>(site.pointer);
    const auto& functions = *launch_.functions;
    const auto begin = reinterpret_cast<std::uint64_t>(functions.data());
    const std::uint64_t pointer = pointers[std::countr_zero(lanes)];
    const std::uint64_t offset = pointer - begin;
    if (offset % sizeof(CompiledFunction) != 0 || offset / sizeof(CompiledFunction) >= functions.size()) {
        w.raise(FaultKind::illegal_instruction, i, pointer, "a call through a pointer that is not a function");
        return false;
    }
    const CompiledFunction& callee = functions[offset / sizeof(CompiledFunction)];
    if (!callee.defined || callee.entry || callee.params.size() != site.arguments_bytes.size() ||
        callee.returns.size() != site.results_bytes.size()) {
        w.raise(FaultKind::illegal_instruction, i, pointer, "a call through a pointer to a function of another type");
        return false;
    }
    std::uint32_t same = 0;
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        const int lane = std::countr_zero(rest);
        if (pointers[lane] == pointer) {
            same |= 1U << lane;
        }
    }
    if (same != lanes) {
        // Lanes with another target return to this instruction. Lanes excluded by the guard continue behind it, in
        // enter().
        Group others = w.current;
        others.mask = lanes & ~same;
        w.current.mask &= ~others.mask;
        w.waiting.push_back(others);
    }
    return enter(w, i, site, callee, same);
}

bool BlockRunner::enter(Warp& w, const Inst& i, const CallSite& site, const CompiledFunction& callee,
                        std::uint32_t lanes) {
    if (!callee.refusal.empty()) {  // called through a pointer
        w.raise(FaultKind::illegal_instruction, i, 0, callee.refusal.c_str());
        return false;
    }
    Frame* caller = w.current.frame;
    std::uint32_t top = w.local_stride_bytes;
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        top = std::min(top, w.stack_top[std::countr_zero(rest)]);
    }
    if (caller->depth >= kMaxCallDepth ||
        caller->local_base_bytes + caller->function->local_bytes + callee.local_bytes > top) {
        w.raise(FaultKind::stack_overflow, i, 0, "calls nested beyond the thread's stack");
        return false;
    }
    Frame* frame = new_frame(callee, caller);
    frame->lanes = lanes;
    frame->return_index = w.current.position + 1;
    frame->call_site = static_cast<std::int32_t>(i.extra);
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
        for (std::size_t k = 0; k < callee.params.size(); ++k) {
            std::memcpy(formal(w, *frame, callee.params[k], lane), area(*caller, lane) + site.arguments_bytes[k],
                        std::min(callee.params[k].size_bytes, site.argument_sizes_bytes[k]));
        }
    }
    if (const std::uint32_t rest = w.current.mask & ~lanes; rest != 0) {
        Group others = w.current;
        others.mask = rest;
        ++others.position;
        w.waiting.push_back(others);
    }
    w.current = {frame, 0, lanes, Wait::none, 0, 0};
    w.regs = frame->registers;
    return true;
}

void BlockRunner::ret(Warp& w, std::uint32_t lanes) {
    Frame* frame = w.current.frame;
    Frame* caller = frame->parent;
    const CallSite& site = caller->function->calls[static_cast<std::size_t>(frame->call_site)];
    const CompiledFunction& callee = *frame->function;
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
        for (std::size_t k = 0; k < callee.returns.size(); ++k) {
            std::memcpy(area(*caller, lane) + site.results_bytes[k], formal(w, *frame, callee.returns[k], lane),
                        std::min(callee.returns[k].size_bytes, site.result_sizes_bytes[k]));
        }
    }
    Group back{caller, frame->return_index, lanes, Wait::none, 0, 0};
    const std::uint32_t stay = w.current.mask & ~lanes;
    frame->lanes &= ~lanes;
    if (stay != 0) {
        // A guarded ret: the other lanes continue in the function, and the returned lanes wait for them.
        w.waiting.push_back(back);
        w.current.mask = stay;
        ++w.current.position;
        return;
    }
    if (frame->lanes == 0) {
        free_frame(frame);
    }
    w.current = back;
    w.regs = caller->registers;
}

bool BlockRunner::builtin(Warp& w, const Inst& i, const CallSite& site, std::uint32_t lanes) {
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        if (!builtin_lane(w, i, site, static_cast<std::uint32_t>(std::countr_zero(rest)))) {
            return false;
        }
    }
    return w.fault.kind == FaultKind::none;
}

std::uint32_t BlockRunner::print(Warp& w, const Inst& i, std::uint32_t lane, std::uint64_t format,
                                 std::uint64_t arguments) {
    // A generic pointer to the packed arguments in local memory.
    const std::uint8_t* packed = nullptr;
    std::size_t packed_bytes = 0;
    if (arguments != 0) {
        const std::uint64_t offset = arguments - windows().local_base;
        if (offset >= w.local_stride_bytes) {
            w.raise(FaultKind::illegal_address, i, arguments, "printf's arguments are not in local memory");
            return 0;
        }
        packed = w.local + std::size_t{lane} * w.local_stride_bytes + offset;
        packed_bytes = w.local_stride_bytes - offset;
    }
    std::uint32_t arguments_read = 0;
    const std::string text = format_device_printf(device_string(format), packed, packed_bytes, arguments_read);
    std::fwrite(text.data(), 1, text.size(), stdout);
    return arguments_read;
}

bool BlockRunner::builtin_lane(Warp& w, const Inst& i, const CallSite& site, std::uint32_t lane) {
    const Frame& frame = *w.current.frame;
    const auto argument = [&](std::size_t k) {
        std::uint64_t value = 0;
        if (k >= site.arguments_bytes.size()) {
            return value;
        }
        std::memcpy(&value, area(frame, lane) + site.arguments_bytes[k],
                    std::min<std::size_t>(8, site.argument_sizes_bytes[k]));
        return value;
    };
    const auto answer = [&](std::uint64_t value) {
        if (site.results_bytes.empty()) {
            return;
        }
        std::memcpy(area(frame, lane) + site.results_bytes[0], &value,
                    std::min<std::size_t>(8, site.result_sizes_bytes[0]));
    };
    switch (site.builtin) {
        case Builtin::vprintf: answer(argument(0) == 0 ? ~0U : print(w, i, lane, argument(0), argument(1))); break;
        case Builtin::assertfail:
            std::fprintf(stderr, "%s:%u: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.\n",
                         device_string(argument(1)).c_str(), static_cast<unsigned>(argument(2)),
                         device_string(argument(3)).c_str(), w.block_index[0], w.block_index[1], w.block_index[2],
                         w.thread_index[0][lane], w.thread_index[1][lane], w.thread_index[2][lane],
                         device_string(argument(0)).c_str());
            w.raise(FaultKind::assertion, i);
            break;
        case Builtin::malloc: answer(device_malloc(argument(0))); break;
        case Builtin::free:
            if (!device_free(argument(0))) {
                w.raise(FaultKind::illegal_address, i, argument(0), "free of a pointer that malloc did not return");
            }
            break;
        case Builtin::none: break;
    }
    return w.fault.kind == FaultKind::none || w.fault.kind == FaultKind::assertion;
}

}  // namespace gpupool::softgpu
