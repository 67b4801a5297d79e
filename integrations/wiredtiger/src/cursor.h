/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Cursors whose methods are ours: they tell which key is sought, and take values from chains. */
#ifndef BPFOF_WIREDTIGER_CURSOR_H
#define BPFOF_WIREDTIGER_CURSOR_H

#include "engine.h"

namespace bpf_of {

/* Wraps a cursor that WiredTiger has opened with this configuration, if searches of it can be pushed down. */
void wrap_cursor(Engine *engine, WT_CURSOR *cursor, const char *config);
/* The table of a wrapped cursor, or null. */
Table *table_of(const WT_CURSOR *cursor);

/* A session that has no cursors yet; there may have been another one at its address. */
void begin_session(const WT_SESSION *session);
/* The session is about to be closed: the program hears of no cursor that it has not opened. */
void end_session(const WT_SESSION *session);
/*
 * For the cursor's search, which is about to be called off: until it goes to another row its session keeps the snapshot
 * that it has now. False if that is not possible.
 */
bool detach(const WT_CURSOR *cursor);

} /* namespace bpf_of */

#endif
