//! Streams, events between them, and graphs of what they were given.
#![expect(unsafe_code, reason = "an interface of C")]

use std::{ffi::c_uint, sync::Arc, time::Instant};

use super::{answer, functions};
use crate::{
    driver::state::{
        CAPTURE_INVALIDATED, Capture, Event, INVALID_HANDLE, Status, Stream, act_all, fail, state,
    },
    error::Error,
};

functions! {
    /// A stream.
    fn cuStreamCreate(stream: *mut usize, _flags: c_uint) {
        let mut all = state();
        let handle = all.handle();
        all.streams.insert(handle, Stream::default());
        // SAFETY: the caller's promise.
        unsafe { answer(stream, handle) }
    }

    /// Gives it back.
    fn cuStreamDestroy_v2(stream: usize) {
        if state().streams.remove(&stream).is_some() { 0 } else { INVALID_HANDLE }
    }

    /// Everything has been done already.
    fn cuStreamSynchronize(stream: usize) {
        if state().streams.contains_key(&stream) { 0 } else { INVALID_HANDLE }
    }

    /// Everything has been done already.
    fn cuStreamQuery(stream: usize) {
        if state().streams.contains_key(&stream) { 0 } else { INVALID_HANDLE }
    }

    /// Whoever waits for what is being captured is captured as well.
    fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) {
        let mut all = state();
        let Some(Event { capture, behind, .. }) = all.events.get(&event).cloned() else { return INVALID_HANDLE };
        let is_open = capture.is_some_and(|capture| all.captures.contains_key(&capture));
        match all.streams.get_mut(&stream) {
            Some(stream) if is_open && stream.capture == capture => stream.waits_for.extend(behind),
            Some(stream) if is_open => *stream = Stream { capture, last: None, waits_for: behind },
            Some(_) => (),
            None => return INVALID_HANDLE,
        }
        0
    }

    /// Begins to capture what a stream is given.
    fn cuStreamBeginCapture_v2(stream: usize, _mode: c_uint) {
        let mut all = state();
        all.disturb("began to capture, too");
        let capture = all.handle();
        match all.streams.get_mut(&stream) {
            Some(stream) if stream.capture.is_none() => {
                *stream = Stream { capture: Some(capture), ..Stream::default() };
            }
            _ => return INVALID_HANDLE,
        }
        all.captures.insert(capture, Capture::begin());
        0
    }

    /// Ends it. Where the library of products was opened, closed or used by another thread meanwhile, it fails always and not now and then.
    fn cuStreamEndCapture(stream: usize, graph: *mut usize) {
        let mut all = state();
        let Some(capture) = all.streams.get(&stream).and_then(|stream| stream.capture) else {
            return INVALID_HANDLE;
        };
        let Some(Capture { captured, disturbed, .. }) = all.captures.remove(&capture) else {
            return INVALID_HANDLE;
        };
        for stream in all.streams.values_mut().filter(|stream| stream.capture == Some(capture)) {
            stream.capture = None;
        }
        if let Some(what) = disturbed {
            return fail(&Error::Disturbed { what }, CAPTURE_INVALIDATED);
        }
        let handle = all.handle();
        all.graphs.insert(handle, Arc::new(captured));
        // SAFETY: the caller's promise.
        unsafe { answer(graph, handle) }
    }

    /// A graph that can be launched.
    fn cuGraphInstantiateWithFlags(exec: *mut usize, graph: usize, _flags: u64) {
        let mut all = state();
        let Some(captured) = all.graphs.get(&graph).cloned() else { return INVALID_HANDLE };
        let handle = all.handle();
        all.graphs.insert(handle, captured);
        // SAFETY: the caller's promise.
        unsafe { answer(exec, handle) }
    }

    /// Launches one.
    fn cuGraphLaunch(exec: usize, _stream: usize) {
        let all = state();
        let (table, Some(graph)) = (Arc::clone(&all.table), all.graphs.get(&exec).cloned()) else {
            return INVALID_HANDLE;
        };
        drop(all);
        act_all(&graph, &table)
    }

    /// Gives one back.
    fn cuGraphExecDestroy(exec: usize) {
        if state().graphs.remove(&exec).is_some() { 0 } else { INVALID_HANDLE }
    }

    /// Gives one back.
    fn cuGraphDestroy(graph: usize) {
        if state().graphs.remove(&graph).is_some() { 0 } else { INVALID_HANDLE }
    }

    /// An event.
    fn cuEventCreate(event: *mut usize, _flags: c_uint) {
        let mut all = state();
        let handle = all.handle();
        all.events.insert(handle, Event::default());
        // SAFETY: the caller's promise.
        unsafe { answer(event, handle) }
    }

    /// Marks where a stream is.
    fn cuEventRecord(event: usize, stream: usize) {
        let mut all = state();
        let Some(stream) = all.streams.get(&stream) else { return INVALID_HANDLE };
        let recorded =
            Event { recorded: Some(Instant::now()), capture: stream.capture, behind: stream.behind() };
        if all.events.insert(event, recorded).is_some() { 0 } else { INVALID_HANDLE }
    }

    /// It has passed.
    fn cuEventSynchronize(event: usize) {
        if state().events.contains_key(&event) { 0 } else { INVALID_HANDLE }
    }

    /// Time between two of them.
    fn cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) {
        let all = state();
        let at = |event: usize| all.events.get(&event).and_then(|event| event.recorded);
        let (Some(start), Some(end)) = (at(start), at(end)) else { return INVALID_HANDLE };
        // SAFETY: the caller's promise.
        unsafe { answer(milliseconds, (end - start).as_secs_f32() * 1e3) }
    }

    /// Gives one back.
    fn cuEventDestroy_v2(event: usize) {
        if state().events.remove(&event).is_some() { 0 } else { INVALID_HANDLE }
    }
}
