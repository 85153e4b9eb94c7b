"""The words of the game: common English ones of five letters."""

from __future__ import annotations

_TEXT = """
about above actor admit adopt adult after again agent agree ahead alarm album alert alien alike alive allow alone along
alter amber angel anger angle angry ankle apart apple apply april apron arena argue arise armor arrow aside asset attic
audio avoid awake award aware bacon badge baker basic basin beach beard beast begin being below bench berry birth black
blade blame blank blast blaze blend bless blind block blond blood bloom board boast bonus boost booth bored bound brain
brake brand brave bread break brick bride brief bring broad brook broom brown brush build bunch burst cabin cable camel
candy cargo carry carve catch cause cedar chain chair chalk charm chart chase cheap check cheek cheer chess chest chief
child chill chord civic claim class clean clear clerk cliff climb clock close cloth cloud clown coach coast cocoa comet
comic coral couch cough count court cover crack craft crane crash crawl cream creek crime crisp cross crowd crown crumb
crust curve cycle daily dairy dance delay depth diary digit diner ditch diver dizzy donor doubt dough draft drain drama
dream dress drift drink drive eager eagle early earth eight elbow elder elect empty enemy enjoy enter entry equal error
essay event every exact exist extra fable faint fairy faith false fancy fault favor feast fence ferry fetch fever fiber
field fifth fifty fight final first flame flash fleet flesh float flock flood floor flour fluid flute focus force forge
forty frame fresh front frost fruit funny ghost giant given glare glass globe glove going grace grade grain grand grant
grape graph grasp grass grave great green greet grill group grove guard guess guest guide habit happy harsh haste heart
heavy hello hinge hobby honey honor horse hotel house human humor ideal image index inner input irony issue ivory jelly
jewel joint judge juice kayak knife knock label labor large laser later laugh layer learn least leave lemon level lever
light limit linen liver lobby local logic loose loyal lucky lunar lunch magic major maple march marsh match mayor medal
mercy merge metal meter midst might minor mixed model money month moral motor mount mouse mouth movie music naval nerve
never night noble noise north novel nurse oasis ocean offer olive onion opera orbit order organ other ounce outer owner
paint panel panic paper party patch pause peace peach pearl pedal penny phase phone photo piano piece pilot pitch pizza
place plain plane plant plate plaza point polar porch pound power press price pride prime print prize proof proud pulse
punch pupil purse queen quest quick quiet quilt quite quote radar radio raise ranch range rapid ratio razor reach ready
realm rebel relax reply rider ridge rifle right rinse risky rival river roast robin robot rocky rough round route royal
rugby ruler rural salad salon salty sauce scale scarf scene scent scoop score scout screw seven shade shaft shake shape
share shark sharp sheep sheet shelf shell shift shine shirt shock shoes shore short shout shrub silly siren skate skill
skirt skull slate sleep slice slide slope small smart smell smile smoke snack snake solar solid solve sorry sound south
space spare spark speak speed spell spend spice spine spoon sport spray squad stack staff stage stair stamp stand start
state steam steel steep stick stiff still stone stool store storm story stove straw strip study stuff style sugar sunny
super sweet swift swing sword table tasty teach tempo tenth thank theme thick thing think third thorn three throw thumb
tiger tight timer toast today token tooth topic torch total touch tough tower trace track trade trail train treat trend
trial tribe trick truck truly trunk trust truth tulip twice uncle under union unite urban usual vague valid value vapor
vault video visit vital vivid vocal voice wagon waist waste watch water weary wedge whale wheat wheel where which white
whole wider witch woman world worry worth wound wrist write wrong yacht yield young youth zebra
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
