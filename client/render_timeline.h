/*
 * A plan's timeline for people: in the terminal, and as a page for a browser.
 *
 * What: lanes as rows, time from left to right, why compute waits, and memory by purpose meanwhile.
 *   The terminal shows blocks where its text is UTF-8, else plain ASCII. The page holds all it
 *   needs: no script, nothing from elsewhere.
 * Who calls it: show, plan. Owner: nothing is kept. Thread: one. Fails: no; whether a page could be
 *   written is seen at the file (ferror, fclose).
 */
#ifndef MF_CLIENT_RENDER_TIMELINE_H
#define MF_CLIENT_RENDER_TIMELINE_H

#include "client/render.h"

void mf_render_timeline(const struct mf_render *render,
                        const Memferry__V1__GetTimelineResponse *timeline);

/* render_timeline.c: a cause of stall in words. */
const char *mf_render_timeline_stall(const char *cause);

/* Parts of a step to ask for: so many rectangles stay below about 2 MB of page. */
#define MF_RENDER_HTML_COLUMNS 600

/* A whole page. `session`: what ran last with this plan, NULL = none. */
void mf_render_html(FILE *out, const Memferry__V1__Plan *plan,
                    const Memferry__V1__GetTimelineResponse *timeline,
                    const Memferry__V1__GetSessionTimelineResponse *session);
/* render_html_svg.c: the drawings of the page. */
void mf_render_html_svg_lanes(FILE *out, const char *title, const Memferry__V1__Plan *plan,
                              const Memferry__V1__GetTimelineResponse *timeline);
/* Memory over time; of the device or of the host. */
void mf_render_html_svg_memory(FILE *out, const Memferry__V1__GetTimelineResponse *timeline,
                               bool device);
/* `text` with what HTML takes for markup written as entities. */
void mf_render_html_svg_text(FILE *out, const char *text);
/* The class of a purpose's colour, of its index. */
#define MF_RENDER_HTML_PURPOSES 6

#endif
